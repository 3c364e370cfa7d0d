//! Get and list: versions, selectors, pages, metadata-only.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::{ApiError, cause};
use crate::path::{ListOptions, View};
use crate::resources::Resource;
use crate::store::{Entry, Store, Table, key_of, range};
use crate::write::{bytes_as, to_bytes, value_as};

/// An object in the requested representation.
pub(crate) fn render(entry: &Entry, resource: &Resource, view: View, now: Timestamp) -> Bytes {
    match view {
        View::Full => bytes_as(entry, &resource.api_version()),
        view => render_value(&value_as(entry, resource), resource, view, now),
    }
}

/// The same for an object that is not stored in this form.
pub(crate) fn render_value(
    value: &Value,
    resource: &Resource,
    view: View,
    now: Timestamp,
) -> Bytes {
    match view {
        View::Full => to_bytes(value),
        View::Metadata => to_bytes(&metadata_only(value)),
        View::Table(include) => to_bytes(&crate::table::of_one(resource, value, include, now)),
    }
}

/// An object reduced to `PartialObjectMetadata`.
pub(crate) fn metadata_only(value: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": value["metadata"],
    })
}

/// Rejects a selector on fields that the resource does not support.
pub(crate) fn check_fields(resource: &Resource, options: &ListOptions) -> Result<(), ApiError> {
    for field in options.fields.fields() {
        let known = matches!(field, "metadata.name" | "metadata.namespace")
            || resource.fields.iter().any(|path| path == field);
        if !known {
            return Err(ApiError::bad_request(format!(
                "Unable to find {:?} that match label selector \"\", field selector {field:?}: \
                 field label not supported: {field}",
                resource.id
            )));
        }
    }
    Ok(())
}

/// Parses a resourceVersion.
pub(crate) fn parse_version(text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "Invalid value: {text:?}: invalid resource version: strconv.ParseUint: parsing \
             {text:?}: invalid syntax"
        ))
    })
}

/// The 410 error for an expired resourceVersion.
pub(crate) fn too_old(asked: u64, current: u64) -> ApiError {
    ApiError::expired(format!("too old resource version: {asked} ({current})"))
}

fn too_large(asked: u64, current: u64) -> ApiError {
    let mut error = ApiError::new(
        504,
        "Timeout",
        format!("Timeout: Too large resource version: {asked}, current: {current}"),
    );
    let reason = "ResourceVersionTooLarge";
    error.details = json!({
        "causes": [{"reason": reason, "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    });
    error
}

/// Where a page ended. A revision of 0 continues with the current objects.
struct Continue {
    revision: u64,
    after: String,
}

impl Continue {
    fn text(&self) -> String {
        let token = json!({"v": "meta.k8s.io/v1", "rv": self.revision, "start": self.after});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn parse(text: &str) -> Result<Self, ApiError> {
        let bad = || ApiError::bad_request("continue key is not valid");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
        let token: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        let revision = token["rv"].as_u64().ok_or_else(bad)?;
        let after = token["start"].as_str().ok_or_else(bad)?.to_owned();
        Ok(Self { revision, after })
    }
}

/// The response to a list, in chunks that share the store's bytes.
pub(crate) struct ListAnswer {
    pub(crate) pieces: Vec<Bytes>,
}

impl Store {
    /// One object.
    pub(crate) fn read(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Entry>, ApiError> {
        self.get(&resource.id, &key_of(namespace, name))
            .ok_or_else(|| ApiError::not_found(resource, name))
    }

    /// A table at `revision`.
    pub(crate) fn table_at(
        &self,
        resource: &Resource,
        revision: u64,
    ) -> Result<Arc<Table>, ApiError> {
        let empty = Arc::default();
        let table = self.table(&resource.id).unwrap_or(&empty);
        if revision >= self.revision {
            return Ok(table.clone());
        }
        self.history
            .rewind(&resource.id, table, revision)
            .map(Arc::new)
            .ok_or_else(|| too_old(revision, self.revision))
    }

    /// The revision that a list returns.
    fn list_revision(&self, options: &ListOptions, stale: Option<u64>) -> Result<u64, ApiError> {
        let exact = options.version_match == "Exact";
        match options.resource_version.as_str() {
            "" => Ok(self.revision),
            "0" => Ok(stale.unwrap_or(self.revision).min(self.revision)),
            text => {
                let asked = parse_version(text)?;
                if asked > self.revision {
                    return Err(too_large(asked, self.revision));
                }
                // As in Kubernetes, a list with a limit and a version but without
                // `resourceVersionMatch` is exact.
                let limited = options.limit > 0 && options.version_match.is_empty();
                if exact || limited {
                    return Ok(asked);
                }
                Ok(stale.map_or(self.revision, |stale| stale.max(asked)).min(self.revision))
            }
        }
    }

    /// The objects of a collection.
    pub(crate) fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        options: &ListOptions,
        stale: Option<u64>,
        view: View,
    ) -> Result<ListAnswer, ApiError> {
        check_fields(resource, options)?;
        if !options.version_match.is_empty() && options.resource_version.is_empty() {
            let fault = cause(
                "FieldValueForbidden",
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
            return Err(ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", &[fault]));
        }
        let proceed = match options.proceed.as_str() {
            "" => None,
            text => Some(Continue::parse(text)?),
        };
        let revision = match &proceed {
            Some(Continue { revision: 0, .. }) => self.revision,
            Some(proceed) => proceed.revision,
            None => self.list_revision(options, stale)?,
        };
        let table = match (self.table_at(resource, revision), &proceed) {
            (Ok(table), _) => table,
            (Err(_), Some(proceed)) => return Err(page_expired(&proceed.after)),
            (Err(error), None) => return Err(error),
        };
        let found = select(resource, &table, namespace, options, proceed.as_ref());
        let (shown, rest) = match options.limit {
            0 => (found.as_slice(), &[][..]),
            limit => found.split_at(limit.min(found.len())),
        };
        let mut meta = json!({"resourceVersion": revision.to_string()});
        if let (false, Some((last, _))) = (rest.is_empty(), shown.last()) {
            let next = Continue { revision, after: (**last).to_string() };
            meta["continue"] = json!(next.text());
            if options.labels.is_empty() && options.fields.is_empty() {
                meta["remainingItemCount"] = json!(rest.len());
            }
        }
        let head = list_head(resource, &meta, view);
        let mut pieces = Vec::with_capacity(shown.len() * 2 + 2);
        pieces.push(Bytes::from(head));
        for (index, (_, entry)) in shown.iter().enumerate() {
            if index > 0 {
                pieces.push(Bytes::from_static(b","));
            }
            pieces.push(match view {
                View::Table(include) => {
                    let value = value_as(entry, resource);
                    crate::table::list_row(resource, &value, include, self.now)
                }
                view => render(entry, resource, view, self.now),
            });
        }
        pieces.push(Bytes::from_static(b"]}"));
        Ok(ListAnswer { pieces })
    }
}

/// The start of a list, up to its first item.
fn list_head(resource: &Resource, meta: &Value, view: View) -> String {
    let (kind, version) = match view {
        View::Full => (&*resource.list_kind, resource.api_version()),
        View::Metadata => ("PartialObjectMetadataList", "meta.k8s.io/v1".to_owned()),
        View::Table(_) => return crate::table::list_head(resource, meta),
    };
    let (kind, version) = (json!(kind), json!(version));
    format!("{{\"kind\":{kind},\"apiVersion\":{version},\"metadata\":{meta},\"items\":[")
}

/// 410 for a page whose revision is no longer in the history, with a token that continues with
/// current objects.
fn page_expired(after: &str) -> ApiError {
    let mut error = ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can \
         start a new list without the continue parameter, or use the continue token in this \
         response to retrieve the remainder of the results. Continuing with the provided token \
         results in an inconsistent list - objects that were created, modified, or deleted between \
         the time the first chunk was returned and now may show up in the list.",
    );
    let next = Continue { revision: 0, after: after.to_owned() };
    error.metadata = json!({"continue": next.text()});
    error
}

/// The entries of a table that a request selects, in order.
pub(crate) fn selected<'a>(
    resource: &Resource,
    table: &'a Table,
    namespace: Option<&str>,
    options: &ListOptions,
) -> Vec<(&'a Arc<str>, &'a Arc<Entry>)> {
    select(resource, table, namespace, options, None)
}

fn select<'a>(
    resource: &Resource,
    table: &'a Table,
    namespace: Option<&str>,
    options: &ListOptions,
    proceed: Option<&Continue>,
) -> Vec<(&'a Arc<str>, &'a Arc<Entry>)> {
    let by_name = match (namespace, options.fields.name()) {
        (Some(namespace), Some(name)) => Some(key_of(namespace, name)),
        (None, Some(name)) if !resource.namespaced => Some(key_of("", name)),
        _ => None,
    };
    let candidates: Box<dyn Iterator<Item = _>> = match &by_name {
        Some(key) => Box::new(table.get_key_value(key.as_str()).into_iter()),
        None => range(table, namespace),
    };
    candidates
        .filter(|(key, _)| proceed.is_none_or(|proceed| ***key > *proceed.after))
        .filter(|(key, entry)| entry.matches(resource, key, &options.labels, &options.fields))
        .collect()
}
