//! The kinds end to end: YAML in, intents and status out, and the CustomResourceDefinitions.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod bad_values;
mod lists;
mod parsing;
mod schemas;
mod statuses;
mod translations;

/// Sample manifests, by name.
pub(crate) const SAMPLES: &[(&str, &str)] = &[
    ("podconfig", include_str!("../samples/podconfig.yaml")),
    ("podnetworkconfig", include_str!("../samples/podnetworkconfig.yaml")),
    ("links", include_str!("../samples/links.yaml")),
    ("podroute", include_str!("../samples/podroute.yaml")),
];
