//! Chance that can be repeated.

use std::time::Duration;

/// A generator of numbers (SplitMix64) that gives the same ones for the same seed.
pub struct Dice(u64);

impl Dice {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        let scaled = ((self.next() >> 32) * u64::from(bound)) >> 32;
        u32::try_from(scaled).unwrap_or_default()
    }

    /// A time of at most so many milliseconds.
    pub fn millis(&mut self, least: u32, most: u32) -> Duration {
        Duration::from_millis(u64::from(least + self.below(most.saturating_sub(least) + 1)))
    }

    /// One of several, each as likely as its weight says.
    pub fn pick<'a, T>(&mut self, weighted: &'a [(u32, T)]) -> Option<&'a T> {
        let total = weighted.iter().map(|(weight, _)| weight).sum();
        let mut left = self.below(total);
        weighted.iter().find_map(|(weight, item)| {
            if left < *weight {
                return Some(item);
            }
            left -= weight;
            None
        })
    }
}

#[test]
fn a_seed_repeats_its_numbers_and_every_weight_counts() {
    let rolls = |seed| {
        let mut dice = Dice::new(seed);
        (0..200)
            .filter_map(|_| dice.pick(&[(1, 'a'), (0, 'b'), (3, 'c')]).copied())
            .collect::<String>()
    };
    let first = rolls(7);
    assert_eq!(first, rolls(7));
    assert_ne!(first, rolls(8));
    let count = |letter| first.matches(letter).count();
    assert_eq!((count('b'), first.len()), (0, 200));
    assert!(count('a') > 20 && count('c') > 100, "{first}");
}
