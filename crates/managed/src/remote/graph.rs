//! Version graphs in Cincinnati's format.

use refit_openshift::{
    url::without_credentials,
    validation::{GraphRequest, offered_by},
};

use super::http::{DEADLINE, Headers, Web, encoded, url};

pub(super) async fn offered(web: &Web, request: &GraphRequest) -> Result<Vec<String>, String> {
    let why = |why: String| {
        format!(
            "cannot read the version graph {}: {why}, check spec.upstream of the ClusterVersion and the proxy",
            without_credentials(&request.url)
        )
    };
    let separator = if request.url.contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}{}", request.url, encoded(request.query()));
    let url = self::url(&url).map_err(|error| why(error.to_string()))?;
    let headers = Headers { accept: Some("application/json"), authorization: None };
    let answer = web.get(&url, &headers, DEADLINE).await.map_err(|error| why(error.to_string()))?;
    if !answer.status.is_success() {
        return Err(why(format!("it answers with HTTP status {}", answer.status.as_u16())));
    }
    offered_by(&answer.body, &request.version).map_err(why)
}
