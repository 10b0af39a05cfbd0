//! Choices that look random and are the same again for the same seed.

/// SplitMix64: small, quick, and every seed is good.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A number from one to another, both possible.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first).saturating_add(1))
    }

    /// One of several.
    pub fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        assert!(!of.is_empty(), "there is something to choose from");
        &of[self.below(of.len() as u64) as usize]
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True in so many of a thousand cases.
    pub fn rarely(&mut self, per_thousand: u64) -> bool {
        self.below(1_000) < per_thousand
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same() {
        let throw = |seed| {
            let mut dice = Dice::new(seed);
            (0..50).map(|_| dice.below(1_000)).collect::<Vec<_>>()
        };
        assert_eq!(throw(7), throw(7));
        assert_ne!(throw(7), throw(8));
    }

    #[test]
    fn both_ends_are_thrown() {
        let mut dice = Dice::new(1);
        let thrown: std::collections::BTreeSet<u64> = (0..200).map(|_| dice.between(3, 5)).collect();
        assert_eq!(thrown, [3, 4, 5].into());
    }
}
