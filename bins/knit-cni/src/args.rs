//! `CNI_ARGS`: who the pod is, and what may be asked for by hand.

use crate::failure::Failure;

/// What the arguments say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Args {
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
    /// An address that is asked for.
    pub address: String,
    /// A hardware address that is asked for.
    pub mac: String,
    /// What is not acted on.
    pub words: Vec<String>,
}

impl Args {
    /// Reads pairs of key and value, `;` between them. An unknown key is an error unless `IgnoreUnknown` is set.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let mut args = Self::default();
        let mut unknown = Vec::new();
        let mut ignores = false;
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                let why = format!("`{}` is no pair of key and value", pair.escape_debug());
                return Err(Failure::variable("CNI_ARGS", why));
            };
            let value = value.to_owned();
            match key {
                "K8S_POD_NAME" => args.pod = value,
                "K8S_POD_NAMESPACE" => args.namespace = value,
                "K8S_POD_UID" => args.uid = value,
                // The same as CNI_CONTAINERID.
                "K8S_POD_INFRA_CONTAINER_ID" => {}
                "IP" => args.address = value,
                "MAC" => args.mac = value,
                "IgnoreUnknown" => ignores = is_true(&value)?,
                other => unknown.push(other.escape_debug().to_string()),
            }
        }
        if !unknown.is_empty() && !ignores {
            let why = format!("{} is not known, and IgnoreUnknown is not set", unknown.join(", "));
            return Err(Failure::variable("CNI_ARGS", why));
        }
        args.words =
            unknown.into_iter().map(|key| format!("CNI_ARGS: {key} is not known: ignored")).collect();
        Ok(args)
    }
}

fn is_true(value: &str) -> Result<bool, Failure> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        other => {
            let why = format!("IgnoreUnknown: `{}` is neither 1 nor 0", other.escape_debug());
            Err(Failure::variable("CNI_ARGS", why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kubelet_says_is_understood() {
        let text = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=abc;\
                    K8S_POD_UID=u-1;NEW=x=y";
        let args = Args::parse(text).unwrap();
        assert_eq!((args.pod.as_str(), args.namespace.as_str(), args.uid.as_str()), ("web-0", "ns", "u-1"));
        assert_eq!(args.words.len(), 1);
        assert_eq!(Args::parse("").unwrap(), Args::default());
    }

    #[test]
    fn an_unknown_or_malformed_argument_is_refused() {
        for wrong in ["NEW=1", "IgnoreUnknown=0;NEW=1", "IgnoreUnknown=maybe", "K8S_POD_NAME"] {
            assert!(Args::parse(wrong).unwrap_err().message.contains("CNI_ARGS"), "{wrong}");
        }
    }
}
