"""The seeded sequence of trades: trade ``i`` is a pure function of the seed, the number of symbols and ``i``.

Prices are random walks per symbol, reflected between two bounds, in integer cents. Trades are drawn in blocks,
each from its own counter of the generator, so a later start only sums up the steps of the blocks before it
(about 40 million trades a second) and never depends on how the sequence was sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BLOCK = 8192
KNOWN = (
    "AAPL", "MSFT", "AMZN", "GOOG", "META", "NVDA", "TSLA", "NFLX", "INTC", "AMD", "ORCL", "CSCO", "ADBE", "CRM",
    "QCOM", "IBM", "TXN", "AVGO", "NOW", "UBER", "JPM", "BAC", "WFC", "GS", "MS", "V", "MA", "AXP", "KO", "PEP",
    "MCD", "SBUX", "NKE", "DIS", "WMT", "COST", "HD", "LOW", "XOM", "CVX",
)  # fmt: skip
_LOWEST, _SPAN = 1_000, 99_000  # cents


@dataclass(frozen=True)
class Block:
    """Consecutive trades as columns: index into the symbols, price in cents, quantity."""

    first: int
    symbol: np.ndarray
    price: np.ndarray
    quantity: np.ndarray


def symbols(count: int) -> tuple[str, ...]:
    """The first ``count`` symbols; the well-known ones come first."""
    if count < 1:
        raise ValueError(f"{count} symbols cannot trade; ask for at least 1.")
    return KNOWN[:count] + tuple(f"S{number:05d}" for number in range(len(KNOWN), count))


class Walk:
    """The sequence from an index on, block by block."""

    def __init__(self, seed: int, count: int, index: int = 0) -> None:
        self._seed, self._count = seed, count
        start = np.random.Philox(key=seed, counter=[0, 0, 0, 1]).random_raw(count)
        self._position = (start % np.uint64(2 * _SPAN)).astype(np.int64)
        self._block, self._skip = divmod(index, BLOCK)
        for number in range(self._block):
            symbol, step, _ = self._draw(number)
            self._position += np.bincount(symbol, weights=step, minlength=count).astype(np.int64)

    def take(self) -> Block:
        """The next trades; a whole block, except for the first after a start inside one."""
        symbol, step, quantity = self._draw(self._block)
        order = np.argsort(symbol, kind="stable")
        by_symbol, total = symbol[order], np.cumsum(step[order])
        first = np.flatnonzero(np.r_[True, by_symbol[1:] != by_symbol[:-1]])
        before = np.r_[0, total[first[1:] - 1]]  # the sum of all steps of the symbols sorted before
        run = np.repeat(before, np.diff(np.r_[first, BLOCK]))
        walked = np.empty(BLOCK, np.int64)
        walked[order] = self._position[by_symbol] + total - run
        self._position += np.bincount(symbol, weights=step, minlength=self._count).astype(np.int64)
        price = _LOWEST + np.abs(walked % (2 * _SPAN) - _SPAN)
        skip, self._skip = self._skip, 0
        number, self._block = self._block, self._block + 1
        return Block(number * BLOCK + skip, symbol[skip:], price[skip:], quantity[skip:])

    def _draw(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Raw bits only: numpy promises that they are the same in every release.
        raw = np.random.Philox(key=self._seed, counter=[0, 0, number, 0]).random_raw(BLOCK)
        symbol = ((raw >> np.uint64(32)) % np.uint64(self._count)).astype(np.int64)
        step = ((raw >> np.uint64(16)) % np.uint64(7)).astype(np.int64) - 3
        quantity = (raw & np.uint64(0xFFFF)).astype(np.int64) % 100 + 1
        return symbol, step, quantity


def sequence(seed: int, count: int = 100, start: int = 0) -> Iterator[tuple[str, int, int]]:
    """Every trade from index ``start`` on, without end, as (symbol, price in cents, quantity)."""
    names, walk = symbols(count), Walk(seed, count, start)
    while True:
        block = walk.take()
        for symbol, price, quantity in zip(
            block.symbol.tolist(), block.price.tolist(), block.quantity.tolist(), strict=True
        ):
            yield names[symbol], price, quantity
