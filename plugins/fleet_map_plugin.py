"""Makes the map of the fleet a page of Airflow, below Browse."""

from airflow.plugins_manager import AirflowPlugin

from streamops_airflow.pages.fleet_map import PREFIX, app


class FleetMapPlugin(AirflowPlugin):
    """The page and its place in the menu."""

    name = "fleet_map"
    fastapi_apps = [{"app": app, "url_prefix": PREFIX, "name": "Fleet map"}]
    external_views = [
        {
            "name": "Fleet map",
            "href": f"{PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "fleet-map",
        }
    ]
