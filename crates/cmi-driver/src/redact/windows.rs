//! Whether a text may contain another text, faster than by a search: bootstrap data have thousands of words
//! to search for, and the answer is nearly always no.

/// The bytes that are looked at together.
const WIDTH: usize = 6;
/// Bits for each window of the text.
const BITS: usize = 16;
/// Spreads the numbers of windows: 2^64 by the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The windows of [`WIDTH`] bytes in a text: a Bloom filter with one hash.
pub(super) struct Windows {
    bits: Vec<u64>,
}

impl Windows {
    pub(super) fn of(text: &str) -> Self {
        let bits = (text.len().max(WIDTH) * BITS).next_power_of_two();
        let mut windows = Self {
            bits: vec![0; bits / 64],
        };
        for window in text.as_bytes().array_windows::<WIDTH>() {
            let (word, bit) = windows.place(*window);
            windows.bits[word] |= bit;
        }
        windows
    }

    /// Where this is false, the text does not hold `other`.
    pub(super) fn may_hold(&self, other: &str) -> bool {
        let ends = [
            other.as_bytes().first_chunk::<WIDTH>(),
            other.as_bytes().last_chunk::<WIDTH>(),
        ];
        ends.into_iter().flatten().all(|window| {
            let (word, bit) = self.place(*window);
            self.bits[word] & bit != 0
        })
    }

    fn place(&self, window: [u8; WIDTH]) -> (usize, u64) {
        let mut number = [0; 8];
        number[..WIDTH].copy_from_slice(&window);
        let hash = u64::from_le_bytes(number).wrapping_mul(SPREAD) >> 32;
        let bit = usize::try_from(hash).unwrap_or_default() % (self.bits.len() * 64);
        (bit / 64, 1 << (bit % 64))
    }
}
