//! Comparison of field values.

use serde_json::Value;

/// Whether a desired and an observed value match. As for whole fields, `null` on either side is not compared; a map must
/// have exactly the same keys.
pub fn values_match(desired: &Value, observed: &Value) -> bool {
    match (desired, observed) {
        (Value::Null, _) | (_, Value::Null) => true,
        (Value::Object(desired), Value::Object(observed)) => {
            let matches =
                |(key, value)| observed.get(key).is_some_and(|observed| values_match(value, observed));
            desired.len() == observed.len() && desired.iter().all(matches)
        }
        (desired, observed) => desired == observed,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unset_values_are_not_compared() {
        assert!(values_match(&json!({"a": {"x": 1, "y": null}}), &json!({"a": {"x": 1, "y": 2}})));
        assert!(values_match(&json!({"a": {"x": 1, "y": 2}}), &json!({"a": {"x": 1, "y": null}})));
        assert!(!values_match(&json!({"a": {"x": 1}}), &json!({"a": {"x": 2}})));
        assert!(!values_match(&json!({"a": {}}), &json!({"a": {}, "b": {}})));
        assert!(!values_match(&json!({"a": {}}), &json!({"b": {}})));
        assert!(!values_match(&json!([1, 2]), &json!([1])));
    }
}
