//! Formatting of addresses, ages, rates and conditions for text output.

use std::time::SystemTime;

use knit_kni::v1;

/// `10.0.0.2/24`.
pub fn address(address: &v1::Address) -> String {
    format!("{}/{}", address.address, address.prefix_length)
}

/// `yes` or `no`.
pub fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// `yes`, `no` with the reason of the first failed condition, or `unknown`.
pub fn ready(readiness: Option<&v1::Readiness>) -> String {
    match readiness {
        None => "unknown".to_owned(),
        Some(readiness) if readiness.ready => "yes".to_owned(),
        Some(readiness) => match readiness.conditions.iter().find(|condition| !condition.ok) {
            Some(condition) => format!("no: {}", condition.reason),
            None => "no".to_owned(),
        },
    }
}

/// `namespace/name`, or the name alone without a namespace.
pub fn qualified_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// The age in its largest unit, as kubectl prints it.
pub fn age(since: Option<&prost_types::Timestamp>, now: SystemTime) -> String {
    let then = since.and_then(|since| SystemTime::try_from(*since).ok());
    let Some(seconds) = then.and_then(|then| now.duration_since(then).ok()).map(|passed| passed.as_secs())
    else {
        return String::new();
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `10 Mbit/s`: a rate in the largest unit that shows it exactly.
pub fn rate(bits: u64) -> String {
    let units = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1_000, "kbit/s")];
    let unit = units.iter().find(|(size, _)| bits >= *size && bits.is_multiple_of(*size));
    match unit {
        Some((size, name)) => format!("{} {name}", bits / size),
        None => format!("{bits} bit/s"),
    }
}

/// The object or call that requested something.
pub fn provenance(origin: &v1::Provenance) -> String {
    let mut text = match &origin.object {
        Some(object) => format!("{} {}", object.kind, qualified_name(&object.namespace, &object.name)),
        None => format!("a {} call", origin.dialect),
    };
    for (separator, part) in [(" ", &origin.field), (", call ", &origin.call_id)] {
        if !part.is_empty() {
            text += &format!("{separator}{part}");
        }
    }
    text
}

/// The failed conditions, one line each.
pub fn failures(conditions: &[v1::Condition]) -> impl Iterator<Item = String> {
    conditions.iter().filter(|condition| !condition.ok).map(|condition| {
        let subject =
            if condition.object.is_empty() { String::new() } else { format!("{}: ", condition.object) };
        format!("{subject}{} ({})", condition.message, condition.reason)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ages_have_one_unit() {
        let since = prost_types::Timestamp { seconds: 1_000_000, nanos: 0 };
        let at = |seconds: u64| {
            age(Some(&since), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds))
        };
        assert_eq!([at(0), at(119), at(120), at(7_200), at(200_000)], ["0s", "119s", "2m", "2h", "2d"]);
        assert_eq!(age(None, SystemTime::now()), "");
        // The clock was set back.
        assert_eq!(age(Some(&since), SystemTime::UNIX_EPOCH), "");
    }

    #[test]
    fn rates_are_exact() {
        assert_eq!(rate(10_000_000), "10 Mbit/s");
        assert_eq!(rate(1_500_000), "1500 kbit/s");
        assert_eq!(rate(999), "999 bit/s");
    }
}
