//! The form of a plan in the journal. Most steps of a change have the same origins, which are recorded once, and defaults are left out:
//! the time to record a change grows with its length.

use std::net::IpAddr;
use std::sync::Arc;

use knit_model::plan::PlannedStep;
use knit_model::problem::Problem;
use knit_model::provenance::Provenance;
use knit_model::{IfName, Plan, Scope, Step};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A plan to be recorded.
#[derive(Serialize)]
struct NewPlan<'a> {
    steps: NewSteps<'a>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    problems: &'a [(Scope, Problem)],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    announced_addresses: &'a [(Scope, IfName, IpAddr)],
}

struct NewSteps<'a>(&'a [PlannedStep]);

#[derive(Serialize)]
struct NewStep<'a> {
    scope: &'a Scope,
    step: &'a Step,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    origins: &'a [Arc<Provenance>],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    same_origins: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    implied: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
}

/// A recorded plan.
#[derive(Deserialize)]
struct RecordedPlan {
    steps: Vec<RecordedStep>,
    #[serde(default)]
    problems: Vec<(Scope, Problem)>,
    #[serde(default)]
    announced_addresses: Vec<(Scope, IfName, IpAddr)>,
}

#[derive(Deserialize)]
struct RecordedStep {
    scope: Scope,
    step: Step,
    #[serde(default)]
    origins: Vec<Arc<Provenance>>,
    /// Whether the origins are those of the step before.
    #[serde(default)]
    same_origins: bool,
    #[serde(default)]
    implied: bool,
    #[serde(default)]
    note: Option<String>,
}

impl Serialize for NewSteps<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut last: &[Arc<Provenance>] = &[];
        to.collect_seq(self.0.iter().map(|planned| {
            let same_origins = !planned.origins.is_empty() && planned.origins == last;
            last = &planned.origins;
            NewStep {
                scope: &planned.scope,
                step: &planned.step,
                origins: if same_origins { &[] } else { &planned.origins },
                same_origins,
                implied: planned.implied,
                note: planned.note.as_deref(),
            }
        }))
    }
}

/// Serializes a plan for the journal.
pub(crate) fn serialize<S: Serializer>(plan: &Plan, to: S) -> Result<S::Ok, S::Error> {
    let Plan { steps, problems, announced_addresses } = plan;
    NewPlan { steps: NewSteps(steps), problems, announced_addresses }.serialize(to)
}

/// Deserializes a plan of the journal.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Plan>, D::Error> {
    let RecordedPlan { steps, problems, announced_addresses } = RecordedPlan::deserialize(from)?;
    let mut last: Vec<Arc<Provenance>> = Vec::new();
    let steps = steps.into_iter().map(|recorded| {
        if !recorded.same_origins {
            last = recorded.origins;
        }
        PlannedStep {
            scope: recorded.scope,
            step: recorded.step,
            origins: last.clone(),
            implied: recorded.implied,
            note: recorded.note,
        }
    });
    Ok(Arc::new(Plan { steps: steps.collect(), problems, announced_addresses }))
}

#[cfg(test)]
mod tests {
    use knit_model::SandboxId;
    use knit_model::filter::{ElementData, FilterStep, TableFamily};
    use knit_model::problem::Reason;
    use knit_model::provenance::Dialect;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Record {
        #[serde(with = "super")]
        plan: Arc<Plan>,
    }

    fn planned(number: u16, origins: &[&str], implied: bool) -> PlannedStep {
        let key = TableFamily::Inet.table().element("ports", vec![number.into()]);
        let origin = |field: &&str| Provenance {
            dialect: Dialect::Knit,
            object: None,
            field: (*field).to_owned(),
            call: None,
        };
        PlannedStep {
            scope: Scope::Sandbox(SandboxId("a".to_owned())),
            step: Step::Filter(FilterStep::AddElement(key, ElementData::Key)),
            origins: origins.iter().map(|field| Arc::new(origin(field))).collect(),
            implied,
            note: implied.then(|| "why".to_owned()),
        }
    }

    fn record() -> Record {
        let steps = vec![
            planned(1, &[], false),
            planned(2, &["a"], false),
            planned(3, &["a"], true),
            planned(4, &[], false),
            planned(5, &[], false),
            planned(6, &["a"], false),
            planned(7, &["a", "b"], false),
        ];
        let problem = Problem::new("spec", Reason::Conflict, "taken");
        let address = (Scope::Host, "net1".parse().unwrap(), "10.0.0.1".parse().unwrap());
        let plan = Plan { steps, problems: vec![(Scope::Host, problem)], announced_addresses: vec![address] };
        Record { plan: Arc::new(plan) }
    }

    #[test]
    fn a_recorded_plan_is_read_as_it_was() {
        let text = serde_json::to_string(&record()).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record());
        let empty = Record { plan: Arc::default() };
        assert_eq!(serde_json::to_string(&empty).unwrap(), r#"{"plan":{"steps":[]}}"#);
        assert_eq!(serde_json::from_str::<Record>(r#"{"plan":{"steps":[]}}"#).unwrap(), empty);
    }

    #[test]
    fn repeated_origins_are_recorded_once() {
        let text = serde_json::to_string(&record()).unwrap();
        // Of the steps 2, 6 and 7; step 7 has two.
        assert_eq!(text.matches(r#""dialect""#).count(), 4, "{text}");
    }

    #[test]
    fn a_plan_that_an_earlier_version_recorded_is_read() {
        // It recorded every field of every step, as the API still shows it.
        let plan = serde_json::to_value(&*record().plan).unwrap();
        let text = serde_json::json!({ "plan": plan }).to_string();
        assert_eq!(text.matches(r#""dialect""#).count(), 5, "{text}");
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record());
    }
}
