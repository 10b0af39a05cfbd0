//! The values that fields hold: each with its schema, the rules that an API server checks, and the same rules in words.
//!
//! A value is kept as it was written, so that an object from a newer version, or one with a bad value, can still be read,
//! shown and reported on; `read` gives the model's value, or a problem with the field's path.

mod address;
mod key;
mod link;
mod number;
mod remote;
mod socket;

pub use address::{AddressText, Cidr, CidrList, IpText, PrefixText};
pub use key::{EndpointText, EntryName, PublicKeyText, SecretEntry};
pub use link::{AliasText, DeviceName, HardwareAddr, InterfaceName, NamePrefix, ObjectName};
pub(crate) use link::{is_object_name, object_name_sentence};
pub use number::{
    DefaultVlan, EncapLimit, FlowLabel, GreKey, LinkGroup, Mark, Metric, Mtu, Port, PrefixLength, Priority,
    QueueLength, Seconds, SkbPriority, StpPriority, TableId, TagPriority, Tos, Ttl, UserId, VlanId,
    VlanRange, Vni, VrfTable, Weight,
};
pub use remote::Remote;
pub(crate) use remote::{FarEnd, local_over_ipv6, same_family};
pub use socket::{ProtocolText, SocketName};

use schemars::{Schema, json_schema};
use serde_json::{Value, json};

/// Declares values: a name, what it holds, and its schema.
macro_rules! values {
    ($($(#[$doc:meta])* $name:ident($inner:ty) = $schema:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    )*};
}
pub(crate) use values;

/// A rule of an API server: an expression that must hold, and the sentence when it does not.
pub(crate) type Rule<'a> = (&'a str, &'a str);

/// A text of at most this many characters. The bound is what keeps the cost of rules in an API server's budget.
pub(crate) fn text(longest: u32, rules: &[Rule<'_>]) -> Schema {
    json_schema!({ "type": "string", "maxLength": longest, "x-kubernetes-validations": rule_list(rules) })
}

/// A whole number within bounds, which are said in the rule's sentence.
pub(crate) fn number(smallest: i64, largest: i64, sentence: &str) -> Schema {
    number_with(smallest, largest, sentence, &[])
}

/// The same, with more rules.
pub(crate) fn number_with(smallest: i64, largest: i64, sentence: &str, more: &[Rule<'_>]) -> Schema {
    let format = if largest > i64::from(i32::MAX) { "int64" } else { "int32" };
    let rule = format!("self >= {smallest} && self <= {largest}");
    let rules = rule_list(&[&[(rule.as_str(), sentence)], more].concat());
    json_schema!({ "type": "integer", "format": format, "x-kubernetes-validations": rules })
}

/// Rules as the schema has them.
pub(crate) fn rule_list(rules: &[Rule<'_>]) -> Value {
    rules.iter().map(|(rule, message)| json!({ "rule": rule, "message": message })).collect()
}
