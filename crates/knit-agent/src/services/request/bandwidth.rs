//! Bandwidth limits of requests and of Kubernetes' annotations.

use std::collections::BTreeMap;

use knit_engine::call::AttachmentMetadata;
use knit_kni::v1;
use knit_model::Problems;
use knit_model::intent::{BandwidthLimits, RateIntent};

use super::{Checked, invalid};

/// Kubernetes' annotations that limit a pod's bandwidth.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// The limits of an interface of knit.v1.
pub(super) fn stated(field: &str, limits: v1::Bandwidth) -> Checked<BandwidthLimits> {
    let some = |number: u64| (number > 0).then_some(number);
    let rate = |direction: &str, bits: u64, burst: u64| {
        let field = format!("{field}.bandwidth.{direction}");
        if bits == 0 && burst > 0 {
            return Err(invalid(&format!("{field}_burst_bytes"), "a burst requires a limit"));
        }
        let rate = some(bits).map(|bits| RateIntent { bits, burst: some(burst) });
        checked(&format!("{field}_bits"), rate)
    };
    Ok(BandwidthLimits {
        ingress: rate("ingress", limits.ingress_bits, limits.ingress_burst_bytes)?,
        egress: rate("egress", limits.egress_bits, limits.egress_burst_bytes)?,
    })
}

/// Fills in limits from the pod's annotations.
pub(super) fn or_annotated(limits: BandwidthLimits, notes: &AttachmentMetadata) -> Checked<BandwidthLimits> {
    Ok(BandwidthLimits {
        ingress: limits.ingress.or(from_annotation(&notes.annotations, INGRESS)?),
        egress: limits.egress.or(from_annotation(&notes.annotations, EGRESS)?),
    })
}

/// The limits of annotations, and their errors.
pub(crate) fn annotated(annotations: &BTreeMap<String, String>) -> (BandwidthLimits, Vec<String>) {
    let mut invalid_value = Vec::new();
    let mut rate = |key| {
        from_annotation(annotations, key).unwrap_or_else(|why| {
            invalid_value.push(why.message().to_owned());
            None
        })
    };
    (BandwidthLimits { ingress: rate(INGRESS), egress: rate(EGRESS) }, invalid_value)
}

fn from_annotation(annotations: &BTreeMap<String, String>, key: &str) -> Checked<Option<RateIntent>> {
    let text = annotations.get(key).filter(|text| !text.is_empty());
    let field = format!("annotations[{key}]");
    let rate = text.map(|text| match bits(text) {
        Some(bits) => Ok(RateIntent { bits, burst: None }),
        None => {
            let message = format!("`{text}` is not a rate in bits per second, such as 10M");
            Err(invalid(&field, message))
        }
    });
    checked(&field, rate.transpose()?)
}

fn checked(field: &str, rate: Option<RateIntent>) -> Checked<Option<RateIntent>> {
    let mut problems = Problems::default();
    if let Some(rate) = &rate {
        rate.check(field, &mut problems);
    }
    match problems.0.first() {
        Some(problem) => Err(invalid(field, problem.message.clone())),
        None => Ok(rate),
    }
}

/// Parses a Kubernetes quantity: `10M`, `1Gi`, `500k`, `1000000`.
fn bits(text: &str) -> Option<u64> {
    let split = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor).filter(|bits| *bits > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_quantities_are_parsed() {
        assert_eq!(bits("10M"), Some(10_000_000));
        assert_eq!(bits("1Gi"), Some(1 << 30));
        assert_eq!(bits("7"), Some(7));
        for invalid_value in ["", "M", "10m", "-1", "0", "99999999999T", "1.5G"] {
            assert_eq!(bits(invalid_value), None, "{invalid_value}");
        }
    }

    #[test]
    fn invalid_limits_are_rejected_with_their_field() {
        let few = v1::Bandwidth { egress_bits: 999, ..Default::default() };
        let refusal = stated("interfaces[0]", few).unwrap_err();
        assert!(refusal.message().contains("interfaces[0].bandwidth.egress_bits"), "{}", refusal.message());
        let burst = v1::Bandwidth { ingress_burst_bytes: 5, ..Default::default() };
        let refusal = stated("interfaces[0]", burst).unwrap_err();
        assert!(refusal.message().contains("ingress_burst_bytes"), "{}", refusal.message());
        let notes = AttachmentMetadata {
            annotations: [(EGRESS.to_owned(), "2000P".to_owned())].into(),
            ..AttachmentMetadata::default()
        };
        assert!(or_annotated(BandwidthLimits::default(), &notes).is_err());
    }
}
