//! Limits of bandwidth, as requests and Kubernetes' annotations say them.

use std::collections::BTreeMap;

use knit_engine::call::Notes;
use knit_kni::v1;
use knit_model::Problems;
use knit_model::intent::{Limits, RateIntent};

use super::{Checked, invalid};

/// Kubernetes' annotations that limit a pod's bandwidth.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// Limits that an interface of knit.v1 states.
pub(super) fn stated(field: &str, limits: v1::Bandwidth) -> Checked<Limits> {
    let some = |number: u64| (number > 0).then_some(number);
    let rate = |way: &str, bits: u64, burst: u64| {
        let field = format!("{field}.bandwidth.{way}");
        if bits == 0 && burst > 0 {
            return Err(invalid(&format!("{field}_burst_bytes"), "a burst without a limit says nothing"));
        }
        let rate = some(bits).map(|bits| RateIntent { bits, burst: some(burst) });
        checked(&format!("{field}_bits"), rate)
    };
    Ok(Limits {
        ingress: rate("ingress", limits.ingress_bits, limits.ingress_burst_bytes)?,
        egress: rate("egress", limits.egress_bits, limits.egress_burst_bytes)?,
    })
}

/// What is left open is what the pod's annotations say.
pub(super) fn or_annotated(limits: Limits, notes: &Notes) -> Checked<Limits> {
    Ok(Limits {
        ingress: limits.ingress.or(said(&notes.annotations, INGRESS)?),
        egress: limits.egress.or(said(&notes.annotations, EGRESS)?),
    })
}

/// What annotations say, and what of them cannot be read.
pub(crate) fn annotated(annotations: &BTreeMap<String, String>) -> (Limits, Vec<String>) {
    let mut wrong = Vec::new();
    let mut rate = |key| {
        said(annotations, key).unwrap_or_else(|why| {
            wrong.push(why.message().to_owned());
            None
        })
    };
    (Limits { ingress: rate(INGRESS), egress: rate(EGRESS) }, wrong)
}

fn said(annotations: &BTreeMap<String, String>, key: &str) -> Checked<Option<RateIntent>> {
    let text = annotations.get(key).filter(|text| !text.is_empty());
    let field = format!("annotations[{key}]");
    let rate = text.map(|text| match bits(text) {
        Some(bits) => Ok(RateIntent { bits, burst: None }),
        None => {
            let message = format!("`{text}` is no amount of bits per second, such as 10M");
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

/// A quantity as Kubernetes writes it: `10M`, `1Gi`, `500k`, `1000000`.
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
    fn quantities_are_read_as_kubernetes_writes_them() {
        assert_eq!(bits("10M"), Some(10_000_000));
        assert_eq!(bits("1Gi"), Some(1 << 30));
        assert_eq!(bits("7"), Some(7));
        for wrong in ["", "M", "10m", "-1", "0", "99999999999T", "1.5G"] {
            assert_eq!(bits(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn limits_that_no_link_takes_are_refused_with_their_field() {
        let few = v1::Bandwidth { egress_bits: 999, ..Default::default() };
        let refusal = stated("interfaces[0]", few).unwrap_err();
        assert!(refusal.message().contains("interfaces[0].bandwidth.egress_bits"), "{}", refusal.message());
        let burst = v1::Bandwidth { ingress_burst_bytes: 5, ..Default::default() };
        let refusal = stated("interfaces[0]", burst).unwrap_err();
        assert!(refusal.message().contains("ingress_burst_bytes"), "{}", refusal.message());
        let notes =
            Notes { annotations: [(EGRESS.to_owned(), "2000P".to_owned())].into(), ..Notes::default() };
        assert!(or_annotated(Limits::default(), &notes).is_err());
    }
}
