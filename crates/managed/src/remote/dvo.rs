//! The metrics of the deployment-validation-operator.

use refit_openshift::Compat;

use super::{
    Remote,
    http::{DEADLINE, Headers, url},
    monitoring::{address, service, unread},
};

const NAMESPACE: &str = "openshift-deployment-validation-operator";
const SERVICE: &str = "deployment-validation-operator-metrics";
const PORT: &str = "http-metrics";

pub(super) async fn metrics(remote: &Remote) -> Result<Option<String>, String> {
    let service = match service(&remote.cluster, (NAMESPACE, SERVICE)).await {
        Ok(Some(service)) => service,
        Ok(None) => return Ok(None),
        // The right to read it is installed together with it.
        Err(kube::Error::Api(status))
            if status.is_forbidden() && remote.compat == Compat::Repaired =>
        {
            return Ok(None);
        }
        Err(error) => return Err(unread(&error, (NAMESPACE, SERVICE))),
    };
    let address = address(&service, (NAMESPACE, SERVICE, PORT))?;
    let why = |why: String| {
        format!("cannot read the metrics of Service {NAMESPACE}/{SERVICE}: {why}, check its Pods")
    };
    let url = url(&format!("http://{address}/metrics")).map_err(|error| why(error.why))?;
    let answer = remote.web.get(&url, &Headers::default(), DEADLINE).await;
    let answer = answer.map_err(|error| why(error.why))?;
    // The original does not look at the status.
    if remote.compat == Compat::Repaired && !answer.status.is_success() {
        return Err(why(format!("they have the HTTP status {}", answer.status.as_u16())));
    }
    Ok(Some(String::from_utf8_lossy(&answer.body).into_owned()))
}
