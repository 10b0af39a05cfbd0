//! When two values of a field say the same.

use serde_json::Value;

/// Whether what is wanted and what is seen say the same. Inside a field, as for whole fields, what either side does not
/// state (`null`) is not compared; a map has exactly the entries that it names.
pub fn agrees(want: &Value, seen: &Value) -> bool {
    match (want, seen) {
        (Value::Null, _) | (_, Value::Null) => true,
        (Value::Object(want), Value::Object(seen)) => {
            want.len() == seen.len()
                && want.iter().all(|(key, value)| seen.get(key).is_some_and(|seen| agrees(value, seen)))
        }
        (want, seen) => want == seen,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_one_side_does_not_state_is_not_compared() {
        assert!(agrees(&json!({"a": {"x": 1, "y": null}}), &json!({"a": {"x": 1, "y": 2}})));
        assert!(agrees(&json!({"a": {"x": 1, "y": 2}}), &json!({"a": {"x": 1, "y": null}})));
        assert!(!agrees(&json!({"a": {"x": 1}}), &json!({"a": {"x": 2}})));
        assert!(!agrees(&json!({"a": {}}), &json!({"a": {}, "b": {}})));
        assert!(!agrees(&json!({"a": {}}), &json!({"b": {}})));
        assert!(!agrees(&json!([1, 2]), &json!([1])));
    }
}
