//! Messages as JSON in the canonical protobuf mapping: camelCase names, enums by name, times as RFC 3339.

use std::sync::OnceLock;

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::Value;

/// The message as JSON. Empty strings and maps and unset messages are omitted; numbers, booleans, enums and lists are
/// always present, so that readers need no defaults. Fails if the message contains a value without a JSON form, such as
/// a time before the year 1.
pub fn value<M: Message + Name>(message: &M) -> Result<Value, serde_json::Error> {
    let name = M::full_name();
    let kind = pool().get_message_by_name(&name).expect("every generated message is in the descriptors");
    let whole = DynamicMessage::decode(kind, message.encode_to_vec().as_slice())
        .expect("a message is decoded by its own descriptor");
    let options = SerializeOptions::new().skip_default_fields(false).stringify_64_bit_integers(false);
    let mut value = whole.serialize_with_options(serde_json::value::Serializer, &options)?;
    prune(&mut value);
    Ok(value)
}

/// The descriptors of all messages and services.
pub fn pool() -> &'static DescriptorPool {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    POOL.get_or_init(|| {
        DescriptorPool::decode(crate::FILE_DESCRIPTOR_SET).expect("the generated descriptor set is valid")
    })
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, field| !is_empty(field));
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::v1;

    #[test]
    fn enums_have_names_numbers_stay_numbers_and_empty_fields_are_omitted() {
        let address = v1::Address {
            address: "10.0.0.2".to_owned(),
            prefix_length: 24,
            family: v1::Family::Ipv4.into(),
            gateway: String::new(),
        };
        let expected = json!({"address": "10.0.0.2", "prefixLength": 24, "family": "FAMILY_IPV4"});
        assert_eq!(value(&address).unwrap(), expected);

        let capacity = v1::Capacity { total: u64::MAX, ..v1::Capacity::default() };
        assert_eq!(value(&capacity).unwrap()["total"], json!(u64::MAX));
        assert_eq!(value(&capacity).unwrap()["exhausted"], json!(false));

        assert_eq!(value(&v1::ListPodsResponse::default()).unwrap(), json!({"pods": []}));

        let since = Some(prost_types::Timestamp { seconds: 0, nanos: 0 });
        let condition = v1::Condition { since, ..v1::Condition::default() };
        assert_eq!(value(&condition).unwrap()["since"], json!("1970-01-01T00:00:00Z"));
    }
}
