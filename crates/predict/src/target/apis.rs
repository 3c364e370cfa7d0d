//! APIs that the target version does not serve any more, and that clients still request
//! (`docs/facts/kubernetes.md#removed-apis`).

use std::collections::BTreeSet;

use super::Warning;

/// The metric that counts them: it has a line for each API that was requested since the API server started.
const METRIC: &str = "apiserver_requested_deprecated_apis{";

/// A deprecated API that was requested.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeprecatedApi {
    group: String,
    version: String,
    resource: String,
    /// The first minor version of Kubernetes 1 that does not serve it.
    removed_in: u64,
}

impl DeprecatedApi {
    /// Reads a line of the API server's metrics; `None` for any other line, and for an API that no version is known to
    /// remove.
    pub fn of_line(line: &str) -> Option<Self> {
        let labels = line.strip_prefix(METRIC)?;
        let (labels, value) = labels.rsplit_once('}')?;
        let label = |name: &str| {
            let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
            let (_, value) = pairs.find(|(key, _)| *key == name)?;
            Some(value.trim_matches('"').to_owned())
        };
        let is_requested = value.trim().parse::<f64>().is_ok_and(|value| value > 0.0);
        let release = label("removed_release")?;
        let (major, minor) = release.split_once('.')?;
        (is_requested && major == "1").then_some(())?;
        Some(Self {
            group: label("group")?,
            version: label("version")?,
            resource: label("resource")?,
            removed_in: minor.parse().ok()?,
        })
    }

    /// The warning, if the target version does not serve it.
    pub(super) fn warning(&self, minor: u64) -> Option<Warning> {
        let Self { group, version, resource, removed_in } = self;
        let api = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
        (*removed_in <= minor).then(|| Warning {
            reason: "RemovedApiInUse",
            object: format!("{resource}.{api}"),
            message: format!(
                "clients have requested {resource} of {api} since the API server started, and v1.{removed_in} does not \
                 serve it any more"
            ),
            remedy: "find the clients in the audit log (annotation k8s.io/removed-release), and move them to a newer \
                     version of this API"
                .to_owned(),
        })
    }
}

/// The warnings for a target version.
pub(super) fn warnings(apis: &BTreeSet<DeprecatedApi>, minor: u64) -> Vec<Warning> {
    apis.iter().filter_map(|api| api.warning(minor)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(release: &str, value: &str) -> String {
        format!(
            "{METRIC}group=\"flowcontrol.apiserver.k8s.io\",removed_release=\"{release}\",\
             resource=\"flowschemas\",subresource=\"\",version=\"v1beta3\"}} {value}"
        )
    }

    #[test]
    fn requested_apis_are_read_from_the_metrics() {
        let api = DeprecatedApi::of_line(&line("1.32", "1")).unwrap();
        assert_eq!((&*api.version, &*api.resource, api.removed_in), ("v1beta3", "flowschemas", 32));
        for other in [
            line("", "1"),
            line("1.32", "0"),
            line("2.0", "1"),
            line("1.x", "1"),
            "apiserver_request_total{resource=\"pods\"} 1".to_owned(),
            format!("# HELP {METRIC}"),
            METRIC.to_owned(),
        ] {
            assert_eq!(DeprecatedApi::of_line(&other), None, "{other}");
        }
    }

    #[test]
    fn an_api_is_a_warning_from_its_removal_on() {
        let apis = [DeprecatedApi::of_line(&line("1.32", "1")).unwrap()].into();
        assert!(warnings(&apis, 31).is_empty());
        let [warning] = &warnings(&apis, 33)[..] else { panic!() };
        assert_eq!(warning.object, "flowschemas.flowcontrol.apiserver.k8s.io/v1beta3");
    }
}
