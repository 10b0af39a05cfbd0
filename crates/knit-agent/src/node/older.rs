//! What was written by an older Knit, as this one has it.

use serde_json::{Value, json};

/// Until format 2 an attachment's limits were two numbers, and its routes pairs of a destination and a router.
pub(super) fn attachments(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(asked) = fields.get_mut("asked") {
                limits(asked);
                routes(asked);
            }
            fields.values_mut().for_each(attachments);
        }
        Value::Array(items) => items.iter_mut().for_each(attachments),
        _ => {}
    }
}

fn limits(asked: &mut Value) {
    let Some(fields) = asked.as_object_mut() else { return };
    for way in ["ingress", "egress"] {
        if let Some(bits) = fields.remove(way).filter(Value::is_number) {
            let limits = fields.entry("limits").or_insert_with(|| json!({}));
            limits[way] = json!({ "bits": bits });
        }
    }
}

fn routes(asked: &mut Value) {
    let Some(routes) = asked.get_mut("routes").and_then(Value::as_array_mut) else { return };
    for route in routes {
        let Some([to, gateway]) = route.as_array().map(Vec::as_slice) else { continue };
        let hop = json!({ "gateway": gateway, "link": null, "weight": 1, "onlink": false });
        *route = json!({
            "to": to, "action": "forward", "via": [hop], "table": 254, "metric": 0,
            "source": null, "scope": null, "mtu": null,
        });
    }
}

#[cfg(test)]
mod tests {
    use knit_engine::call::Asked;

    use super::*;

    #[test]
    fn limits_and_routes_of_format_2_are_read() {
        let old = json!({ "ingress": 8000, "routes": [["10.9.0.0/16", null], ["fd00::/8", "fd75::1"]] });
        let mut record = json!({ "Attached": { "asked": old, "sandbox": "s" } });
        attachments(&mut record);
        let asked: Asked = serde_json::from_value(record["Attached"]["asked"].clone()).unwrap();
        assert_eq!((asked.limits.ingress.unwrap().bits, asked.limits.egress), (8_000, None));
        assert_eq!(asked.routes[1].via[0].gateway, Some("fd75::1".parse().unwrap()));
        assert_eq!((asked.routes.len(), asked.routes[0].via[0].gateway), (2, None));
        // What is new already stays as it is.
        let mut again = json!({ "asked": &asked });
        attachments(&mut again);
        assert_eq!(serde_json::from_value::<Asked>(again["asked"].clone()).unwrap(), asked);
    }
}
