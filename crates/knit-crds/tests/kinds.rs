//! The kinds as people and programs use them: YAML in, intents and status out, definitions for an API server.
#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

#[path = "kinds/bad_values.rs"]
mod bad_values;
#[path = "kinds/lists.rs"]
mod lists;
#[path = "kinds/parsing.rs"]
mod parsing;
#[path = "kinds/schemas.rs"]
mod schemas;
#[path = "kinds/statuses.rs"]
mod statuses;
#[path = "kinds/translations.rs"]
mod translations;

/// Every sample, by name.
pub(crate) const SAMPLES: &[(&str, &str)] = &[
    ("podconfig", include_str!("samples/podconfig.yaml")),
    ("podnetworkconfig", include_str!("samples/podnetworkconfig.yaml")),
    ("links", include_str!("samples/links.yaml")),
    ("podroute", include_str!("samples/podroute.yaml")),
];
