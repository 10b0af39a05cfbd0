//! Random rules with every expression of the model.

use knit_model::filter::field::{DataType, EtherType, Field, IpFamily, Value};
use knit_model::filter::rule::{Comparison, Expression, FilterRule, LookupResult, Register};
use knit_model::filter::{BaseChain, FilterSet, FilterTable, Hook, KeyPart, MapData, TableFamily};

use super::spec::{Choices, RuleSpec};
use super::values::{ORDERED, range, value};

pub const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Registers of four bytes.
const REGISTERS: u8 = 16;

/// Where a rule is.
pub struct Place<'a> {
    pub family: TableFamily,
    /// Its sets and counters.
    pub table: &'a FilterTable,
    /// The hook from which it is called; `None`: any hook.
    pub at: Option<&'a BaseChain>,
    /// The chains that it may jump to.
    pub targets: Vec<String>,
}

/// A rule that grows from left to right.
pub struct Builder<'a> {
    pub rule: FilterRule,
    pub place: &'a Place<'a>,
    /// The protocol of its frames.
    pub frame: EtherType,
    /// The layer 4 protocol of its packets.
    pub protocol: u8,
    /// Whether it matches the protocols already.
    pub knows_frame: bool,
    pub knows_protocol: bool,
}

/// A rule.
pub fn rule(spec: &RuleSpec, place: &Place<'_>) -> FilterRule {
    let mut choices = Choices(spec.protocols);
    let mut frames = vec![EtherType::Ip(IpFamily::V4), EtherType::Ip(IpFamily::V6)];
    if place.family != TableFamily::Inet {
        frames.push(EtherType::Arp);
    }
    let frame = *choices.one_of(&frames).unwrap();
    let icmp = if frame == EtherType::Ip(IpFamily::V6) { ICMPV6 } else { ICMP };
    let protocol = *choices.one_of(&[TCP, UDP, icmp]).unwrap();
    let mut builder = Builder {
        rule: FilterRule { comment: spec.comment.clone(), ..FilterRule::new() },
        place,
        frame,
        protocol,
        knows_frame: false,
        knows_protocol: false,
    };
    for part in &spec.parts {
        builder.part(&mut Choices(*part));
    }
    builder.end(&mut Choices(spec.end));
    builder.rule
}

impl Builder<'_> {
    pub fn then(&mut self, expression: Expression) {
        self.rule.expressions.push(expression);
    }

    pub fn extend(&mut self, build: impl FnOnce(FilterRule) -> FilterRule) {
        self.rule = build(std::mem::take(&mut self.rule));
    }

    /// Whether the rule may load a field. All fields of one rule are of one protocol, so that `nft` can name them.
    fn has(&self, field: Field) -> bool {
        let inet = self.place.family == TableFamily::Inet;
        let ip = |family: IpFamily| self.frame == EtherType::Ip(family);
        match field {
            Field::IifName | Field::OifName | Field::EtherType | Field::Mark => true,
            // Only the bridge and netdev families see Ethernet headers at every hook.
            Field::SourceMac | Field::DestinationMac => !inet,
            Field::ArpSenderMac | Field::ArpSenderIp | Field::ArpTargetIp => self.frame == EtherType::Arp,
            Field::L4Protocol => self.frame != EtherType::Arp,
            Field::Source(family) | Field::Destination(family) => ip(family),
            Field::SourcePort | Field::DestinationPort => {
                self.frame != EtherType::Arp && matches!(self.protocol, TCP | UDP)
            }
            Field::IcmpType => self.frame != EtherType::Arp && matches!(self.protocol, ICMP | ICMPV6),
            Field::NdTarget => ip(IpFamily::V6) && self.protocol == ICMPV6,
            // The one only at some hooks, the other with names; `every_expression_is_listed_by_nft_and_read_back` has them.
            Field::FibReversePath | Field::TcpFlags => false,
            // Routing and connection tracking are not available in the other families of every kernel.
            Field::NextHop(family)
            | Field::CtOriginalDestination(family)
            | Field::CtOriginalSource(family)
            | Field::CtReplySource(family) => inet && ip(family),
            _ => inet,
        }
    }

    /// Matches the protocols that a field depends on.
    pub fn require(&mut self, field: Field) {
        let needs_protocol =
            matches!(field, Field::SourcePort | Field::DestinationPort | Field::IcmpType | Field::NdTarget);
        let needs_frame = needs_protocol
            || matches!(
                field,
                Field::Source(_)
                    | Field::Destination(_)
                    | Field::NextHop(_)
                    | Field::CtOriginalDestination(_)
                    | Field::CtOriginalSource(_)
                    | Field::CtReplySource(_)
                    | Field::ArpSenderMac
                    | Field::ArpSenderIp
                    | Field::ArpTargetIp
            );
        if needs_frame && !std::mem::replace(&mut self.knows_frame, true) {
            let (frame, family) = (self.frame, self.place.family);
            self.extend(|rule| match (frame, family) {
                (EtherType::Ip(family), TableFamily::Inet) => rule.family(family),
                _ => rule.is(Field::EtherType, frame),
            });
        }
        if needs_protocol && !std::mem::replace(&mut self.knows_protocol, true) {
            let protocol = self.protocol;
            self.extend(|rule| rule.is(Field::L4Protocol, protocol));
        }
    }

    /// The value that a field of protocols has in this rule. `nft` 1.0.6 ends with a failed assertion when it lists a rule that
    /// requires two protocols and names a field of one of them.
    fn own_protocol(&self, field: Field) -> Option<Value> {
        match (field, self.frame) {
            (Field::EtherType, frame) => Some(frame.into()),
            (Field::NfProto, EtherType::Ip(family)) => Some(family.number().into()),
            (Field::L4Protocol, _) => Some(self.protocol.into()),
            _ => None,
        }
    }

    /// A field that the rule may load and that is of this type.
    fn field(&self, is_selected: impl Fn(DataType) -> bool, choices: &mut Choices) -> Option<Field> {
        let fields: Vec<Field> = Field::ALL
            .into_iter()
            .filter(|field| self.has(*field) && is_selected(field.data_type()))
            .collect();
        choices.one_of(&fields).copied()
    }

    /// Loads fields of these types from a register on. Returns whether there are such fields.
    pub fn load(&mut self, types: &[DataType], mut to: Register, choices: &mut Choices) -> bool {
        let fields: Vec<Field> =
            types.iter().map_while(|kind| self.field(|other| other == *kind, choices)).collect();
        let length: usize = types.iter().map(|kind| kind.length().div_ceil(4)).sum();
        if fields.len() < types.len() || usize::from(to.0) + length > usize::from(REGISTERS) {
            return false;
        }
        // The matches of protocols use the first register.
        fields.iter().for_each(|field| self.require(*field));
        for field in fields {
            self.then(Expression::Load { field, to });
            to = to.after(field.length());
        }
        true
    }

    /// A set with such data.
    pub fn set(
        &self,
        choices: &mut Choices,
        is_selected: impl Fn(&FilterSet) -> bool,
    ) -> Option<(String, FilterSet)> {
        let sets: Vec<_> = self.place.table.sets.iter().filter(|(_, set)| is_selected(set)).collect();
        choices.one_of(&sets).map(|(name, set)| ((*name).clone(), (*set).clone()))
    }

    /// Loads the key of a set and looks it up. A key of one number may be computed.
    pub fn look_up(
        &mut self,
        set: (String, FilterSet),
        negated: bool,
        to: LookupResult,
        choices: &mut Choices,
    ) -> bool {
        let (name, set) = set;
        let is_found = match &set.key[..] {
            [DataType::Mark] if choices.is_true() => {
                self.number(choices);
                true
            }
            key => self.load(key, Register::FIRST, choices),
        };
        if is_found {
            self.then(Expression::Lookup { set: name, negated, to, from: Register::FIRST });
        }
        is_found
    }

    /// Computes a number.
    fn number(&mut self, choices: &mut Choices) {
        // The kernel accepts no modulus of zero, and the highest number must fit.
        let (modulus, offset) = (1 + choices.below(100) as u32, choices.below(1000) as u32);
        let to = Register::FIRST;
        if choices.is_true() && self.load(&[DataType::Name, DataType::Mark], to, choices) {
            let length = (DataType::Name.length() + DataType::Mark.length()) as u32;
            // The kernel chooses a random seed if there is none, and does not list it.
            let seed = 1 + choices.below(1 << 20) as u32;
            self.then(Expression::Hash { length, modulus, seed, offset, to });
        } else {
            let random = choices.is_true();
            self.then(Expression::Number { modulus, offset, random, to });
        }
    }

    fn part(&mut self, choices: &mut Choices) {
        let hook = self.place.at.map(|base| &base.hook);
        match choices.below(16) {
            0 | 1 => {
                let Some(field) = self.field(|_| true, choices) else { return };
                self.require(field);
                let (random, negated) = (value(field.data_type(), choices), choices.is_true());
                let value = self.own_protocol(field).filter(|_| !negated).unwrap_or(random);
                if !negated {
                    self.knows_frame |= matches!(field, Field::EtherType | Field::NfProto);
                    self.knows_protocol |= field == Field::L4Protocol;
                }
                self.extend(|rule| if negated { rule.is_not(field, value) } else { rule.is(field, value) });
            }
            2 => {
                let Some(field) = self.field(|kind| ORDERED.contains(&kind), choices) else { return };
                self.require(field);
                let KeyPart::Range(first, last) = range(field.data_type(), None, choices) else { return };
                self.extend(|rule| rule.between(field, first, last));
            }
            3 => self.prefix(choices),
            4 => self.bits(choices),
            5 | 6 => {
                // A map is looked up for its data only.
                let set = self.set(choices, |set| set.data.is_none());
                let negated = choices.is_true();
                set.map(|set| self.look_up(set, negated, LookupResult::Match, choices));
            }
            7 => {
                self.number(choices);
                let value = (choices.below(100) as u32).into();
                self.then(Expression::Compare { is: Comparison::Equal, value });
            }
            8 => self.then(Expression::Count),
            9 => {
                if let Some(counter) = choices.one_of(&self.place.table.counters) {
                    self.then(Expression::CountIn(counter.clone()));
                }
            }
            10 => {
                let prefix = ["", "knit: ", "a longer prefix with \"quotes\""][choices.below(3) as usize];
                let group = choices.is_true().then(|| choices.below(100) as u16);
                self.then(Expression::Log { prefix: prefix.to_owned(), group });
            }
            11 => {
                let is_mark = |set: &FilterSet| set.data == Some(MapData::Values(vec![DataType::Mark]));
                if let Some(set) = self.set(choices, is_mark)
                    && self.look_up(set, false, LookupResult::Load(Register::FIRST), choices)
                {
                    self.then(Expression::SetMark);
                }
            }
            12 => {
                let (value, mask) =
                    (u32::from_ne_bytes(choices.bytes()), u32::from_ne_bytes(choices.bytes()));
                let is_ct = self.has(Field::CtMark) && choices.is_true();
                let set = if is_ct { FilterRule::set_ct_mark } else { FilterRule::set_mark };
                self.extend(|rule| set(rule, value & mask, mask));
            }
            13 => self.learn(choices),
            14 => {
                let seconds = [1, 60, 3_600, 86_400, 604_800][choices.below(5) as usize];
                let (packets, burst) = (1 + choices.below(50), 1 + choices.below(50) as u32);
                self.then(Expression::Limit { packets, seconds, burst });
            }
            _ => {
                // Connection tracking is not available in netdev tables.
                let is_early = matches!(hook, Some(Hook::Prerouting | Hook::Output));
                if is_early && self.place.family == TableFamily::Inet {
                    self.then(Expression::NoTrack);
                }
            }
        }
    }

    fn prefix(&mut self, choices: &mut Choices) {
        let is_address = |kind| matches!(kind, DataType::Ipv4 | DataType::Ipv6);
        let Some(field) = self.field(is_address, choices) else { return };
        self.require(field);
        let Value::Address(address) = value(field.data_type(), choices) else {
            return;
        };
        let widest = if address.is_ipv4() { 32 } else { 128 };
        let network = ipnet::IpNet::new(address, 1 + choices.below(widest) as u8).unwrap();
        let negated = choices.is_true();
        self.extend(|rule| match negated {
            true => rule.not_within(field, network),
            false => rule.within(field, network),
        });
    }

    fn bits(&mut self, choices: &mut Choices) {
        let is_number = |kind| matches!(kind, DataType::Mark | DataType::CtState | DataType::CtStatus);
        let Some(field) = self.field(is_number, choices) else { return };
        let bits = match field.data_type() {
            DataType::Mark => u32::from_ne_bytes(choices.bytes()) | 1,
            _ => [0x2, 0x6, 0x8][choices.below(3) as usize],
        };
        let kind = choices.below(3);
        self.extend(|rule| match kind {
            0 => rule.any_bit(field, bits),
            1 => rule.no_bit(field, bits),
            _ => rule.has_bits(field, bits & 0x5555_5555, bits),
        });
    }
}
