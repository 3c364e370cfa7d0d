//! Numbers of a simulation: the same seed gives the same numbers in every build and on every
//! machine, so that a seed in a note still means the same run next year.

/// A generator (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The generator of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u32, high: u32) -> u32 {
        let span = u64::from(high.saturating_sub(low)) + 1;
        low + u32::try_from(self.next() % span).unwrap_or_default()
    }

    /// Whether an event of this probability happens.
    pub(crate) fn chance(&mut self, times: u32, of: u32) -> bool {
        self.between(1, of) <= times
    }

    /// One of several values; there must be one.
    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let last = u32::try_from(all.len().saturating_sub(1)).unwrap_or_default();
        &all[self.between(0, last) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_forever() {
        let mut random = Random::new(17);
        let numbers: Vec<u32> = (0..5).map(|_| random.between(0, 999)).collect();
        assert_eq!(numbers, [379, 713, 356, 611, 966]);
        assert_ne!(Random::new(17).next(), Random::new(18).next());
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        let mut random = Random::new(1);
        assert!((0..1000).map(|_| random.between(3, 5)).all(|n| (3..=5).contains(&n)));
        assert!((0..100).all(|_| random.chance(1, 1)));
    }
}
