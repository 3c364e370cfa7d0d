//! Parsed requests: path, verb, query, headers.

use std::collections::BTreeMap;

use http::request::Parts;
use http::{HeaderMap, Method, header};

use crate::error::{ApiError, invalid_value};
use crate::selector::{FieldSelector, LabelSelector};
use crate::write::{FieldValidation, WriteOptions};

/// The target of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/openapi/v3` and below: the rest of the path.
    OpenApi(String),
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/api`, `/apis`, `/api/v1`, `/apis/GROUP[/VERSION]`: the segments.
    Discovery(Vec<String>),
    /// `/version`.
    Version,
    /// `/healthz`, `/livez`, `/readyz`.
    Health,
    /// A collection or an object.
    Resource(Target),
    /// Not a path of this server.
    Unknown,
}

/// The collection or object that a request addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: Option<String>,
    pub(crate) plural: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: String,
}

impl Target {
    /// `plural.group`, the resource id in the store and in fault rules.
    pub(crate) fn resource(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }
}

/// Percent-decodes a text; `None` if the result is not UTF-8.
fn decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let (high, low) = (rest.next()?, rest.next()?);
                let digit = |byte: u8| char::from(byte).to_digit(16);
                u8::try_from(digit(high)? * 16 + digit(low)?).ok()?
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Parses a path.
pub(crate) fn route(path: &str) -> Route {
    let segments: Option<Vec<String>> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| decode(segment, false).filter(|text| !text.contains('\0')))
        .collect();
    let Some(segments) = segments else {
        return Route::Unknown;
    };
    let words: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (group, version, rest) = match words.as_slice() {
        ["version"] => return Route::Version,
        ["openapi", "v3", rest @ ..] => return Route::OpenApi(rest.join("/")),
        ["openapi", "v2"] => return Route::OpenApiV2,
        ["healthz" | "livez" | "readyz", ..] => return Route::Health,
        ["api" | "apis"] | ["api" | "apis", _] | ["apis", _, _] => {
            return Route::Discovery(segments);
        }
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return Route::Unknown,
    };
    let (namespace, rest) = match rest {
        // Namespaces are a resource themselves, with subresources.
        ["namespaces", _, "status" | "finalize"] if group.is_empty() => (None, rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => {
            (Some((*namespace).to_owned()), rest)
        }
        rest => (None, rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, None, ""),
        [plural, name] => (*plural, Some((*name).to_owned()), ""),
        [plural, name, sub] => (*plural, Some((*name).to_owned()), *sub),
        _ => return Route::Unknown,
    };
    Route::Resource(Target {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace,
        plural: plural.to_owned(),
        name,
        subresource: subresource.to_owned(),
    })
}

/// A decoded query.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let mut map = BTreeMap::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad = || ApiError::bad_request(format!("invalid URL escape in query: {pair:?}"));
            let key = decode(key, true).ok_or_else(bad)?;
            let value = decode(value, true).ok_or_else(bad)?;
            map.entry(key).or_insert(value);
        }
        Ok(Self(map))
    }

    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|value| matches!(value.as_str(), "" | "true" | "1" | "True"))
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<u64>, ApiError> {
        match self.get(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!("invalid {key}: {text:?} is not a whole number"))
            }),
        }
    }

    /// `dryRun`, whose only value is `All`.
    pub(crate) fn dry_run(&self) -> Result<bool, ApiError> {
        match self.get("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(ApiError::invalid_kind(
                "meta.k8s.io",
                "PatchOptions",
                "",
                &[invalid_value("dryRun", other, "Unsupported value: supported values: \"All\"")],
            )),
        }
    }

    pub(crate) fn write_options(&self, user_agent: &str) -> Result<WriteOptions, ApiError> {
        let manager = match self.get("fieldManager") {
            "" => user_agent.split('/').next().unwrap_or_default().chars().take(128).collect(),
            manager if manager.len() > 128 => {
                return Err(ApiError::invalid_kind(
                    "meta.k8s.io",
                    "PatchOptions",
                    "",
                    &[invalid_value("fieldManager", manager, "may not be more than 128 bytes")],
                ));
            }
            manager => manager.to_owned(),
        };
        Ok(WriteOptions {
            dry_run: self.dry_run()?,
            manager,
            validation: self.field_validation()?,
            force: self.flag("force"),
        })
    }

    fn field_validation(&self) -> Result<FieldValidation, ApiError> {
        Ok(match self.get("fieldValidation") {
            "" => FieldValidation::Unset,
            "Ignore" => FieldValidation::Ignore,
            "Warn" => FieldValidation::Warn,
            "Strict" => FieldValidation::Strict,
            other => {
                let why = "Unsupported value: supported values: \"Ignore\", \"Strict\", \"Warn\"";
                let fault = invalid_value("fieldValidation", other, why);
                return Err(ApiError::invalid_kind("meta.k8s.io", "PatchOptions", "", &[fault]));
            }
        })
    }

    /// What the rows of a table include.
    fn include(&self) -> Result<Include, ApiError> {
        Ok(match self.get("includeObject") {
            "None" => Include::Nothing,
            "" | "Metadata" => Include::Metadata,
            "Object" => Include::Object,
            other => {
                return Err(ApiError::bad_request(format!(
                    "invalid includeObject {other:?}: supported values: None, Metadata, Object"
                )));
            }
        })
    }

    pub(crate) fn list_options(&self) -> Result<ListOptions, ApiError> {
        let labels = LabelSelector::parse(self.get("labelSelector"));
        let fields = FieldSelector::parse(self.get("fieldSelector"));
        let limit = self.number("limit")?.unwrap_or(0);
        Ok(ListOptions {
            labels: labels.map_err(ApiError::bad_request)?,
            fields: fields.map_err(ApiError::bad_request)?,
            resource_version: self.get("resourceVersion").to_owned(),
            version_match: self.get("resourceVersionMatch").to_owned(),
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            proceed: self.get("continue").to_owned(),
            watch: self.flag("watch"),
            bookmarks: self.flag("allowWatchBookmarks"),
            initial_events: self.0.get("sendInitialEvents").map(|value| value == "true"),
            timeout_seconds: self.number("timeoutSeconds")?,
        })
    }
}

/// `metav1.ListOptions`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListOptions {
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
    pub(crate) resource_version: String,
    pub(crate) version_match: String,
    pub(crate) limit: usize,
    pub(crate) proceed: String,
    pub(crate) watch: bool,
    pub(crate) bookmarks: bool,
    pub(crate) initial_events: Option<bool>,
    pub(crate) timeout_seconds: Option<u64>,
}

/// The requested representation of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// Whole objects.
    Full,
    /// `PartialObjectMetadata`.
    Metadata,
    /// A human-readable `Table`.
    Table(Include),
}

/// What the rows of a table include in addition to their cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    /// Nothing.
    Nothing,
    /// `PartialObjectMetadata`.
    Metadata,
    /// The whole object.
    Object,
}

/// The request headers that the server uses.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) user_agent: String,
    pub(crate) content_type: String,
    pub(crate) view: Option<View>,
    /// Whether the aggregated form of discovery is requested.
    pub(crate) aggregated: bool,
    /// Whether OpenAPI v2 is requested as protocol buffers.
    pub(crate) protobuf: bool,
}

impl Head {
    /// The requested representation of the response.
    pub(crate) fn view(&self, query: &Query) -> Result<View, ApiError> {
        match self.view.ok_or_else(ApiError::not_acceptable)? {
            View::Table(_) => Ok(View::Table(query.include()?)),
            view => Ok(view),
        }
    }

    pub(crate) fn read(parts: &Parts) -> Self {
        Self {
            aggregated: header_text(&parts.headers, header::ACCEPT)
                .split(',')
                .any(wants_aggregated),
            protobuf: header_text(&parts.headers, header::ACCEPT)
                .contains(crate::openapi::V2_PROTOBUF_NAME),
            user_agent: header_text(&parts.headers, header::USER_AGENT),
            content_type: header_text(&parts.headers, header::CONTENT_TYPE)
                .split(';')
                .next()
                .unwrap_or_default()
                .trim()
                .to_ascii_lowercase(),
            view: accepted(&header_text(&parts.headers, header::ACCEPT)),
        }
    }
}

fn header_text(headers: &HeaderMap, name: header::HeaderName) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// Whether an option of an `Accept` header requests the aggregated form of discovery.
fn wants_aggregated(option: &str) -> bool {
    let has = |wanted: &str| option.split(';').any(|part| part.trim() == wanted);
    has("application/json") && has("g=apidiscovery.k8s.io") && has("v=v2")
}

/// The first supported representation in an `Accept` header.
fn accepted(accept: &str) -> Option<View> {
    if accept.trim().is_empty() {
        return Some(View::Full);
    }
    for option in accept.split(',') {
        let mut parts = option.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        if !matches!(media, "application/json" | "application/*" | "*/*" | "application/yaml") {
            continue;
        }
        let (mut shape, mut version) = (None, None);
        for part in parts {
            shape = shape.or(part.strip_prefix("as="));
            version = version.or(part.strip_prefix("v="));
        }
        match shape {
            Some("Table") if version == Some("v1") => return Some(View::Table(Include::Metadata)),
            None => return Some(View::Full),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                return Some(View::Metadata);
            }
            Some(_) => {}
        }
    }
    None
}

/// The Kubernetes verb of a request.
pub(crate) fn verb(method: &Method, target: &Target, options_watch: bool) -> Option<&'static str> {
    let named = target.name.is_some();
    Some(match *method {
        Method::GET if named => "get",
        Method::GET if options_watch => "watch",
        Method::GET => "list",
        Method::POST if !named || !target.subresource.is_empty() => "create",
        Method::PUT if named => "update",
        Method::PATCH if named => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> Target {
        match route(path) {
            Route::Resource(target) => target,
            other => panic!("{path} led to {other:?}"),
        }
    }

    #[test]
    fn paths_name_group_namespace_object_and_subresource() {
        let found = target("/apis/cluster.x-k8s.io/v1beta2/namespaces/a/machines/m/status");
        assert_eq!(found.group, "cluster.x-k8s.io");
        assert_eq!(found.version, "v1beta2");
        assert_eq!(found.namespace.as_deref(), Some("a"));
        assert_eq!(found.plural, "machines");
        assert_eq!(found.name.as_deref(), Some("m"));
        assert_eq!(found.subresource, "status");
    }

    #[test]
    fn namespaces_are_a_resource_and_a_scope() {
        assert_eq!(target("/api/v1/namespaces/a").plural, "namespaces");
        assert_eq!(target("/api/v1/namespaces/a/status").subresource, "status");
        assert_eq!(target("/api/v1/namespaces/a/pods").plural, "pods");
        assert_eq!(target("/api/v1/namespaces").name, None);
    }

    #[test]
    fn percent_encoding_is_undone() {
        let found = target("/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode");
        assert_eq!(found.name.as_deref(), Some("system:node"));
        let query = Query::parse("labelSelector=a%3Db%2Cc&x=1+2").unwrap();
        assert_eq!(query.get("labelSelector"), "a=b,c");
        assert_eq!(query.get("x"), "1 2");
    }

    #[test]
    fn broken_escapes_lead_nowhere() {
        assert_eq!(route("/api/v1/pods/%"), Route::Unknown);
        assert_eq!(route("/api/v1/pods/%ff%zz"), Route::Unknown);
        assert!(Query::parse("a=%f").is_err());
    }
}
