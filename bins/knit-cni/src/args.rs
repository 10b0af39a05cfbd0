//! `CNI_ARGS`: the identity of the pod, and requested addresses.

use crate::error::CniError;

/// The parsed arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Args {
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
    /// The requested address.
    pub address: String,
    /// The requested MAC address.
    pub mac: String,
    /// Arguments that are ignored.
    pub warnings: Vec<String>,
}

impl Args {
    /// Parses `KEY=VALUE` pairs that are separated by `;`. An unknown key is an error unless `IgnoreUnknown` is set.
    pub fn parse(text: &str) -> Result<Self, CniError> {
        let mut args = Self::default();
        let mut unknown = Vec::new();
        let mut ignore_unknown = false;
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                let reason = format!("expected KEY=VALUE, not `{}`", pair.escape_debug());
                return Err(CniError::invalid_environment("CNI_ARGS", reason));
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
                "IgnoreUnknown" => ignore_unknown = is_true(&value)?,
                other => unknown.push(other.escape_debug().to_string()),
            }
        }
        if !unknown.is_empty() && !ignore_unknown {
            let reason = format!("unknown argument {}, and IgnoreUnknown is not set", unknown.join(", "));
            return Err(CniError::invalid_environment("CNI_ARGS", reason));
        }
        args.warnings =
            unknown.into_iter().map(|key| format!("CNI_ARGS: unknown argument {key}: ignored")).collect();
        Ok(args)
    }
}

fn is_true(value: &str) -> Result<bool, CniError> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        other => {
            let reason = format!("IgnoreUnknown: expected 1 or 0, not `{}`", other.escape_debug());
            Err(CniError::invalid_environment("CNI_ARGS", reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_the_kubelet_are_parsed() {
        let text = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=abc;\
                    K8S_POD_UID=u-1;NEW=x=y";
        let args = Args::parse(text).unwrap();
        assert_eq!((args.pod.as_str(), args.namespace.as_str(), args.uid.as_str()), ("web-0", "ns", "u-1"));
        assert_eq!(args.warnings.len(), 1);
        assert_eq!(Args::parse("").unwrap(), Args::default());
    }

    #[test]
    fn unknown_and_malformed_arguments_are_rejected() {
        for text in ["NEW=1", "IgnoreUnknown=0;NEW=1", "IgnoreUnknown=maybe", "K8S_POD_NAME"] {
            assert!(Args::parse(text).unwrap_err().message.contains("CNI_ARGS"), "{text}");
        }
    }
}
