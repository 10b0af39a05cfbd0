//! Random tables as lists of choices, which proptest shrinks. [`super::build`] turns them into tables that the kernel accepts.

use proptest::prelude::*;

/// Numbers that select among alternatives. Zero always selects the first one.
#[derive(Clone, Copy, Debug)]
pub struct Choices(pub u64);

impl Choices {
    /// A number below `count`.
    pub fn below(&mut self, count: u64) -> u64 {
        let picked = self.0 % count;
        self.0 /= count;
        picked
    }

    /// One of these; `None` if there are none.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() { None } else { all.get(self.below(all.len() as u64) as usize) }
    }

    pub fn is_true(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Bytes that follow from the remaining choices.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        // splitmix64: near numbers give different bytes.
        let mut mixed = || {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut value = self.0;
            value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (value ^ (value >> 31)) as u8
        };
        std::array::from_fn(|_| mixed())
    }
}

/// A rule: its protocols, its matches and statements, its end.
#[derive(Clone, Debug)]
pub struct RuleSpec {
    pub protocols: u64,
    pub parts: Vec<u64>,
    pub end: u64,
    pub comment: Option<String>,
}

/// A set: its declaration and its elements.
#[derive(Clone, Debug)]
pub struct SetSpec {
    pub declaration: u64,
    pub elements: Vec<u64>,
}

/// A base chain: its hook and its rules.
#[derive(Clone, Debug)]
pub struct BaseSpec {
    pub hook: u64,
    pub rules: Vec<RuleSpec>,
}

/// A table.
#[derive(Clone, Debug)]
pub struct TableSpec {
    pub sets: Vec<SetSpec>,
    /// The rules of chains that others jump to.
    pub regular: Vec<Vec<RuleSpec>>,
    pub base: Vec<BaseSpec>,
    pub counters: Vec<String>,
    /// Whether chains jump to those with lower numbers, or to those with higher ones.
    pub jumps_down: bool,
}

/// A table of each family, or none.
pub type FilterSpec = [Option<TableSpec>; 3];

fn rule() -> impl Strategy<Value = RuleSpec> {
    let comment = prop::option::weighted(0.2, "[ -~]{1,127}");
    let parts = prop::collection::vec(any::<u64>(), 0..4);
    (any::<u64>(), parts, any::<u64>(), comment).prop_map(|(protocols, parts, end, comment)| RuleSpec {
        protocols,
        parts,
        end,
        comment,
    })
}

fn table() -> impl Strategy<Value = TableSpec> {
    let elements = prop::collection::vec(any::<u64>(), 0..6);
    let set = (any::<u64>(), elements).prop_map(|(declaration, elements)| SetSpec { declaration, elements });
    let rules = || prop::collection::vec(rule(), 0..5);
    let base = (any::<u64>(), rules()).prop_map(|(hook, rules)| BaseSpec { hook, rules });
    let counters = prop::sample::subsequence(vec!["k0".to_owned(), "k1".to_owned()], 0..=2);
    let sets = prop::collection::vec(set, 0..7);
    let regular = prop::collection::vec(rules(), 0..5);
    let base = prop::collection::vec(base, 0..5);
    (sets, regular, base, counters, any::<bool>()).prop_map(|(sets, regular, base, counters, jumps_down)| {
        TableSpec { sets, regular, base, counters, jumps_down }
    })
}

fn filter() -> impl Strategy<Value = FilterSpec> {
    let family = || prop::option::weighted(0.8, table());
    (family(), family(), family()).prop_map(|(inet, bridge, netdev)| [inet, bridge, netdev])
}

/// Two filters. Half of the time the second one has the sets and hooks of the first, so that its tables are changed and not
/// recreated.
pub fn two_filters() -> impl Strategy<Value = (FilterSpec, FilterSpec)> {
    (filter(), filter(), any::<bool>()).prop_map(|(first, mut second, keeps)| {
        for (before, after) in first.iter().zip(&mut second) {
            if let (Some(before), Some(after), true) = (before, after, keeps) {
                for (before, after) in before.sets.iter().zip(&mut after.sets) {
                    after.declaration = before.declaration;
                }
                for (before, after) in before.base.iter().zip(&mut after.base) {
                    after.hook = before.hook;
                }
            }
        }
        (first, second)
    })
}
