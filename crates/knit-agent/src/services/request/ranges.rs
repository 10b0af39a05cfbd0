//! Sub-ranges of a network that a request restricts its addresses to. The engine checks them against the network.

use std::str::FromStr;

use knit_engine::call::RangeRequest;
use knit_kni::v1;

use super::{Checked, check_count, invalid};

/// The range sets of an interface.
pub(super) fn sets(field: &str, spec: &v1::InterfaceSpec) -> Checked<Vec<Vec<RangeRequest>>> {
    let field = format!("{field}.range_sets");
    if spec.range_sets.is_empty() {
        return Ok(Vec::new());
    }
    let on_network = matches!(spec.to, Some(v1::interface_spec::To::Network(_)));
    if matches!(spec.to, Some(v1::interface_spec::To::Link(_))) || (!spec.device_id.is_empty() && !on_network)
    {
        return Err(invalid(&field, "requires a network"));
    }
    check_count(&field, spec.range_sets.len())?;
    check_count(&field, spec.range_sets.iter().map(|set| set.ranges.len()).sum())?;
    let set = |(at, set): (usize, &v1::RangeSet)| {
        let ranges = set.ranges.iter().enumerate();
        ranges.map(|(of, one)| range(&format!("{field}[{at}].ranges[{of}]"), one)).collect()
    };
    spec.range_sets.iter().enumerate().map(set).collect()
}

fn range(field: &str, range: &v1::AddressRange) -> Checked<RangeRequest> {
    let Some(subnet) = parse(&format!("{field}.subnet"), &range.subnet, "subnet with a prefix length")?
    else {
        return Err(invalid(&format!("{field}.subnet"), "required"));
    };
    let address = |of: &str, text: &str| parse(&format!("{field}.{of}"), text, "address");
    Ok(RangeRequest {
        subnet,
        first: address("first", &range.first)?,
        last: address("last", &range.last)?,
        gateway: address("gateway", &range.gateway)?,
    })
}

fn parse<T: FromStr>(field: &str, text: &str, what: &str) -> Checked<Option<T>> {
    let value = (!text.is_empty()).then(|| text.parse::<T>()).transpose();
    value.map_err(|_| invalid(field, format!("`{}` is not a valid {what}", text.escape_debug())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(subnet: &str, first: &str) -> v1::InterfaceSpec {
        let range =
            v1::AddressRange { subnet: subnet.to_owned(), first: first.to_owned(), ..Default::default() };
        v1::InterfaceSpec { range_sets: vec![v1::RangeSet { ranges: vec![range] }], ..Default::default() }
    }

    #[test]
    fn invalid_ranges_are_rejected_with_their_field() {
        let read = sets("i", &spec("10.0.0.0/24", "10.0.0.9")).unwrap();
        assert_eq!(read[0][0].first, Some("10.0.0.9".parse().unwrap()));
        assert_eq!((read[0][0].last, read[0][0].gateway), (None, None));
        for (invalid_value, field) in [
            (spec("", ""), "i.range_sets[0].ranges[0].subnet"),
            (spec("10.0.0.0", ""), "i.range_sets[0].ranges[0].subnet"),
            (spec("10.0.0.0/24", "x"), "i.range_sets[0].ranges[0].first"),
            (
                v1::InterfaceSpec { device_id: "0000:00:1f.6".to_owned(), ..spec("10.0.0.0/24", "") },
                "i.range_sets",
            ),
            (
                v1::InterfaceSpec { range_sets: vec![v1::RangeSet::default(); 300], ..Default::default() },
                "i.range_sets",
            ),
        ] {
            let message = sets("i", &invalid_value).unwrap_err().message().to_owned();
            assert!(message.starts_with(&format!("{field}: ")), "{message}");
        }
    }
}
