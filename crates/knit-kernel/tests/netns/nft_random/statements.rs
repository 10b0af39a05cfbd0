//! The statements of a random rule that depend on its chain: verdicts, address translation, additions to sets.

use knit_model::filter::field::{DataType, EtherType, Field, IpFamily};
use knit_model::filter::rule::{Expression, FilterRule, LookupResult, Register, RejectWith, Translation};
use knit_model::filter::{ChainType, FilterSet, Hook, MapData, TableFamily};

use super::rules::{Builder, TCP};
use super::spec::Choices;

impl Builder<'_> {
    /// Adds an element to a dynamic set.
    pub fn learn(&mut self, choices: &mut Choices) {
        let Some((set, declaration)) = self.set(choices, |set| set.timeout.is_some()) else { return };
        let registers: usize = declaration.key.iter().map(|kind| kind.length().div_ceil(4)).sum();
        let after = Register(registers as u8);
        // The data first: protocols are matched in the first register, where the key has to stay.
        let data = match &declaration.data {
            Some(MapData::Values(types)) if self.load(types, after, choices) => Some(after),
            Some(_) => return,
            None => None,
        };
        if !self.load(&declaration.key, Register::FIRST, choices) {
            return;
        }
        let timeout = choices.is_true().then(|| 1000 * (1 + choices.below(100_000)));
        self.then(Expression::Learn { set, data, renew: choices.is_true(), timeout });
    }

    pub fn end(&mut self, choices: &mut Choices) {
        let at = self.place.at.map(|base| (base.chain_type, &base.hook));
        if let Some((ChainType::Nat, hook)) = at
            && choices.is_true()
        {
            return self.translate(hook, choices);
        }
        let target = choices.one_of(&self.place.targets).cloned();
        match (choices.below(8), target) {
            (0, _) => self.extend(FilterRule::accept),
            (1, _) => self.extend(FilterRule::drop),
            (2, _) => self.extend(FilterRule::return_),
            (3, Some(target)) => self.extend(|rule| rule.jump(&target)),
            (4, Some(target)) => self.extend(|rule| rule.goto(&target)),
            // Verdicts lead to chains without a caller of their own, where a lookup would be a loop.
            (5, _) if at.is_some() => {
                let set = self.set(choices, |set| set.data == Some(MapData::Verdict));
                set.map(|set| self.look_up(set, false, LookupResult::Verdict, choices));
            }
            (6, _) => self.reject(choices),
            _ => {}
        }
    }

    fn reject(&mut self, choices: &mut Choices) {
        // At other hooks the kernel cannot answer, and in the other families not every kernel can.
        let can_answer = self.place.at.is_some_and(|base| {
            self.place.family == TableFamily::Inet
                && base.chain_type == ChainType::Filter
                && matches!(base.hook, Hook::Input | Hook::Forward | Hook::Output)
        });
        if can_answer {
            let all = [RejectWith::Prohibited, RejectWith::PortUnreachable, RejectWith::TcpReset];
            let with = *choices.one_of(&all).unwrap();
            self.extend(|rule| rule.reject(with));
        }
    }

    /// The kernel changes destinations when a packet arrives or is created, and sources when it leaves or is delivered;
    /// masquerading only when it leaves.
    fn translate(&mut self, hook: &Hook, choices: &mut Choices) {
        match hook {
            Hook::Postrouting if choices.is_true() => {
                let random = choices.is_true();
                self.extend(|rule| rule.masquerade(random));
            }
            Hook::Postrouting | Hook::Input => self.nat(Translation::Source, choices),
            _ => self.nat(Translation::Destination, choices),
        }
    }

    /// Translates to the address, and port, that a map has.
    fn nat(&mut self, translates: Translation, choices: &mut Choices) {
        let family_of = |set: &FilterSet| match &set.data {
            Some(MapData::Values(data)) => match data[..] {
                [DataType::Ipv4] | [DataType::Ipv4, DataType::Port] => Some(IpFamily::V4),
                [DataType::Ipv6] | [DataType::Ipv6, DataType::Port] => Some(IpFamily::V6),
                _ => None,
            },
            _ => None,
        };
        let is_nat = |set: &FilterSet| {
            let family = family_of(set);
            let is_open = !self.knows_frame && !self.knows_protocol;
            family.is_some_and(|family| is_open || self.frame == EtherType::Ip(family))
        };
        let Some((name, set)) = self.set(choices, is_nat) else { return };
        let Some(family) = family_of(&set) else { return };
        if !self.knows_frame && !self.knows_protocol {
            // The rule has no field of a protocol yet: it becomes one of the map's family.
            (self.frame, self.protocol) = (EtherType::Ip(family), TCP);
        }
        let has_port = matches!(&set.data, Some(MapData::Values(data)) if data.len() == 2);
        let port = has_port.then(|| Register::FIRST.after(family.data_type().length()));
        // `nft` names the fields of the key by it.
        self.require(Field::Source(family));
        if self.look_up((name, set), false, LookupResult::Load(Register::FIRST), choices) {
            self.then(Expression::Nat { translates, family, address: Register::FIRST, port });
        }
    }
}
