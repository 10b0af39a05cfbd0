//! Field values: each with its schema, the CEL rules of the API server, and the same checks in Rust.
//!
//! A value is stored as it was written, so that an object from a newer version or with an invalid value can still be
//! parsed, shown and reported; `read` returns the model's value, or adds a problem with the field's path.

mod address;
mod key;
mod link;
mod namespace;
mod number;
mod remote;
mod socket;

pub use address::{AddressText, Cidr, CidrList, IpText, PoolRange, PrefixText};
pub use key::{EndpointText, EntryName, PublicKeyText, SecretEntry};
pub use link::{AliasText, DeviceName, HardwareAddr, InterfaceName, NamePrefix, ObjectName};
pub(crate) use link::{invalid_object_name, is_object_name};
pub use namespace::{NamespaceName, NamespaceOrAll};
pub use number::{
    DefaultVlan, EncapLimit, FlowLabel, GreKey, LinkGroup, Mark, Metric, Mtu, Port, PrefixLength, Priority,
    QueueLength, Seconds, SkbPriority, StpPriority, TableId, TagPriority, Tos, Ttl, UserId, VlanId,
    VlanRange, Vni, VrfTable, Weight,
};
pub use remote::Remote;
pub(crate) use remote::{RemoteEndpoint, local_over_ipv6, same_family};
pub use socket::{ProtocolText, SocketName};

use schemars::{Schema, json_schema};
use serde_json::{Value, json};

/// Declares value types: a name, the inner type, and the schema.
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

/// A CEL rule: an expression that must be true, and the message if it is not.
pub(crate) type Rule<'a> = (&'a str, &'a str);

/// A string of at most this many characters. The limit bounds the cost of the CEL rules.
pub(crate) fn text(max_length: u32, rules: &[Rule<'_>]) -> Schema {
    json_schema!({ "type": "string", "maxLength": max_length, "x-kubernetes-validations": rule_list(rules) })
}

/// An integer within bounds, which the message contains.
pub(crate) fn number(min: i64, max: i64, message: &str) -> Schema {
    number_with(min, max, message, &[])
}

/// [`number`] with additional rules.
pub(crate) fn number_with(min: i64, max: i64, message: &str, more: &[Rule<'_>]) -> Schema {
    let format = if max > i64::from(i32::MAX) { "int64" } else { "int32" };
    let rule = format!("self >= {min} && self <= {max}");
    let rules = rule_list(&[&[(rule.as_str(), message)], more].concat());
    json_schema!({ "type": "integer", "format": format, "x-kubernetes-validations": rules })
}

/// Rules as `x-kubernetes-validations`.
pub(crate) fn rule_list(rules: &[Rule<'_>]) -> Value {
    rules.iter().map(|(rule, message)| json!({ "rule": rule, "message": message })).collect()
}
