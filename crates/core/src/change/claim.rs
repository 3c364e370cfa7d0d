//! Claims of an Updater: which changes of a machine's objects it makes.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use refit_kinds::refit::hash_json;
use serde_json::Value;

use super::{
    claim_path::{ClaimPath, Step},
    path::{Path, Segment},
};

/// What an Updater claims of one kind of object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// API group of the machine's own object.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// The paths.
    pub paths: Vec<ClaimPath>,
}

impl Claim {
    /// Whether it claims the Kubernetes version of Machines.
    pub(super) fn names_version(&self) -> bool {
        let is_of_machine = self.group == "cluster.x-k8s.io" && self.kind == "Machine";
        is_of_machine && self.paths.iter().any(|path| names(path, "/spec/version"))
    }

    /// Whether the claim is about this object, or about what this template makes.
    pub(super) fn is_of(&self, object: &Value) -> bool {
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
        group == self.group && machine_kind(text("kind")) == self.kind
    }
}

/// The kind of a machine's own object, from its kind or from that of what it is made from.
pub fn machine_kind(kind: &str) -> &str {
    match kind {
        "MachineSet" => "Machine",
        kind => kind.strip_suffix("Template").unwrap_or(kind),
    }
}

/// Whether the paths claim everything that differs between `from` and `to` at `at`. Both are whole
/// objects of a machine, or what a template makes of one.
pub(super) fn claims_all(paths: &[ClaimPath], at: &[Segment], from: &Value, to: &Value) -> bool {
    let (mut from, mut to) = (Some(from), Some(to));
    let mut left: Vec<Left<'_>> = paths.iter().map(Left::all).collect();
    for segment in at {
        (from, to) = (child(from, segment), child(to, segment));
        left = further(&left, segment, from, to);
    }
    // If nothing differs there, the caller has looked at the wrong objects.
    from != to && covered(&left, from, to)
}

/// Whether a pattern names the value at a pointer into a machine's own object, which has no list.
pub(super) fn names(path: &ClaimPath, pointer: &str) -> bool {
    let segments = pointer.split('/').skip(1);
    let mut left = vec![Left::all(path)];
    for segment in segments {
        let segment = Segment::Key(segment.replace("~1", "/").replace("~0", "~"));
        left = further(&left, &segment, None, None);
    }
    left.iter().any(|one| one.steps.is_empty())
}

/// sha256 of the values that claims name in a machine's own objects; `None` if none of the objects is of
/// their kinds.
pub(super) fn hash_of(claims: &[Claim], objects: &[&Value]) -> Option<String> {
    let mut values = serde_json::Map::new();
    let mut is_known = false;
    for object in objects {
        for claim in claims.iter().filter(|claim| claim.is_of(object)) {
            is_known = true;
            let left: Vec<Left<'_>> = claim.paths.iter().map(Left::all).collect();
            let mut at = Path::of(&[&claim.group, &claim.kind]);
            collect(&left, object, &mut at, &mut values);
        }
    }
    is_known.then(|| hash_json(&Value::Object(values)))
}

/// Collects the values below `at` that the paths name.
fn collect(
    left: &[Left<'_>],
    value: &Value,
    at: &mut Path,
    values: &mut serde_json::Map<String, Value>,
) {
    let children: Vec<(Segment, &Value)> = match value {
        Value::Object(members) => {
            members.iter().map(|(key, value)| (Segment::Key(key.clone()), value)).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(at, value)| (Segment::Index(at), value)).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    if left.iter().any(|one| one.steps.is_empty() && (one.below || children.is_empty())) {
        values.insert(at.pointer(), value.clone());
        return;
    }
    for (segment, child) in children {
        let further = further(left, &segment, Some(child), Some(child));
        if !further.is_empty() {
            // An element that a path names is the same wherever it is in its list.
            let mut keys = left.iter().filter_map(Left::element_key);
            let name = keys.find_map(|key| Some(format!("[{key}={}]", text(child, key)?)));
            let place = match (&segment, name) {
                (Segment::Index(_), Some(name)) => Segment::Key(name),
                (Segment::Index(_) | Segment::Key(_), _) => segment,
            };
            at.step(place, |at| collect(&further, child, at, values));
        }
    }
}

/// The rest of a path that begins at some value.
#[derive(Clone, Copy, Debug)]
struct Left<'a> {
    steps: &'a [Step],
    below: bool,
}

impl<'a> Left<'a> {
    fn all(path: &'a ClaimPath) -> Self {
        Self { steps: &path.steps, below: path.below }
    }

    /// The key by which the path selects an element of the list at this value.
    fn element_key(&self) -> Option<&'a str> {
        match self.steps.first()? {
            Step::Element { key, .. } => Some(key),
            Step::Key(_) | Step::Any => None,
        }
    }

    fn further(self, segment: &Segment, from: Option<&Value>, to: Option<&Value>) -> Option<Self> {
        let Some((step, steps)) = self.steps.split_first() else {
            return self.below.then_some(self);
        };
        let matches = match (step, segment) {
            (Step::Any, Segment::Key(_) | Segment::Index(_)) => true,
            (Step::Key(wanted), Segment::Key(key)) => wanted == key,
            (Step::Element { key, value }, Segment::Index(_)) => {
                let mut sides = [from, to].into_iter().flatten().peekable();
                sides.peek().is_some()
                    && sides.all(|element| text(element, key).as_deref() == Some(value))
            }
            (Step::Key(_), Segment::Index(_)) | (Step::Element { .. }, Segment::Key(_)) => false,
        };
        matches.then_some(Self { steps, ..self })
    }
}

fn child<'a>(value: Option<&'a Value>, segment: &Segment) -> Option<&'a Value> {
    match segment {
        Segment::Key(key) => value?.get(key),
        Segment::Index(index) => value?.get(index),
    }
}

/// The text of a member that may name an element: that of a string, a number or a boolean.
fn text<'a>(element: &'a Value, key: &str) -> Option<Cow<'a, str>> {
    match element.get(key)? {
        Value::String(text) => Some(text.into()),
        value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string().into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn further<'a>(
    left: &[Left<'a>],
    segment: &Segment,
    from: Option<&Value>,
    to: Option<&Value>,
) -> Vec<Left<'a>> {
    left.iter().filter_map(|one| one.further(segment, from, to)).collect()
}

fn covered(left: &[Left<'_>], from: Option<&Value>, to: Option<&Value>) -> bool {
    if from == to {
        return true;
    }
    let is_plain = |value: Option<&Value>| !value.is_some_and(|v| v.is_object() || v.is_array());
    let plain = is_plain(from) && is_plain(to);
    if left.iter().any(|one| one.steps.is_empty() && (one.below || plain)) {
        return true;
    }
    match (from, to) {
        _ if left.is_empty() => false,
        (Some(Value::Object(_)) | None, Some(Value::Object(_)) | None) => {
            members_covered(left, from, to)
        }
        (Some(Value::Array(_)) | None, Some(Value::Array(_)) | None) => {
            elements_covered(left, from, to)
        }
        // One kind of value replaces another.
        (Some(_), Some(_) | None) | (None, Some(_)) => false,
    }
}

/// An object that is added or removed as a whole, or differs: each member that differs is claimed.
fn members_covered(left: &[Left<'_>], from: Option<&Value>, to: Option<&Value>) -> bool {
    let members = [from, to].into_iter().flatten().filter_map(Value::as_object);
    let all: BTreeSet<&String> = members.flat_map(serde_json::Map::keys).collect();
    !all.is_empty()
        && all.into_iter().cloned().map(Segment::Key).all(|member| {
            let (from, to) = (child(from, &member), child(to, &member));
            covered(&further(left, &member, from, to), from, to)
        })
}

/// A list in which elements are added or removed, with paths that select elements by a key: each element
/// that differs is claimed, and the others keep their order.
fn elements_covered(left: &[Left<'_>], from: Option<&Value>, to: Option<&Value>) -> bool {
    let keys: BTreeSet<&str> = left.iter().filter_map(Left::element_key).collect();
    keys.into_iter().any(|key| elements_covered_by(key, left, from, to))
}

fn elements_covered_by(
    key: &str,
    left: &[Left<'_>],
    from: Option<&Value>,
    to: Option<&Value>,
) -> bool {
    let (Some(old), Some(new)) = (Elements::of(from, key), Elements::of(to, key)) else {
        return false;
    };
    // Only a path that names an element claims that it is there or not.
    let naming: Vec<Left<'_>> =
        left.iter().copied().filter(|one| one.element_key() == Some(key)).collect();
    let all: BTreeSet<&str> = old.names().chain(new.names()).collect();
    !all.is_empty()
        && old.names_also_in(&new).eq(new.names_also_in(&old))
        && all.into_iter().all(|name| {
            let (from, to) = (old.get(name), new.get(name));
            let left = if from.is_some() && to.is_some() { left } else { &naming };
            // The place in its list does not matter to a path.
            covered(&further(left, &Segment::Index(0), from, to), from, to)
        })
}

/// The elements of a list, with the text that names each.
struct Elements<'a> {
    in_order: Vec<Cow<'a, str>>,
    by_name: BTreeMap<Cow<'a, str>, &'a Value>,
}

impl<'a> Elements<'a> {
    /// The elements of a list, which may be absent; `None` if one has no name, or two have the same.
    fn of(list: Option<&'a Value>, key: &str) -> Option<Self> {
        let elements = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let names = elements.iter().map(|element| text(element, key));
        let in_order = names.collect::<Option<Vec<_>>>()?;
        let by_name: BTreeMap<_, _> = in_order.iter().cloned().zip(elements).collect();
        (by_name.len() == in_order.len()).then_some(Self { in_order, by_name })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.in_order.iter().map(AsRef::as_ref)
    }

    /// The names that are in the other list, too, in the order of this one.
    fn names_also_in<'b>(&'b self, other: &'b Elements<'_>) -> impl Iterator<Item = &'b str> {
        self.names().filter(|name| other.get(name).is_some())
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.by_name.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::change::{diff::changes, testing::any_json};

    fn paths(texts: &[&str]) -> Vec<ClaimPath> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// The paths that differ and are not claimed.
    fn unclaimed(claims: &[&str], from: &Value, to: &Value) -> Vec<String> {
        let claims = paths(claims);
        changes(&Path::default(), Some(from), Some(to))
            .into_iter()
            .filter(|change| !claims_all(&claims, change.path.segments(), from, to))
            .map(|change| change.path.to_string())
            .collect()
    }

    #[test]
    fn the_hash_of_a_claim_follows_what_it_names() {
        let claim = |paths_of: &[&str]| Claim {
            group: "g".into(),
            kind: "M".into(),
            paths: paths(paths_of),
        };
        let machine = |memory: i32, image: &str| {
            json!({"apiVersion": "g/v1", "kind": "M",
                   "spec": {"memory": memory, "image": {"url": image}, "disks": [{"name": "a", "size": memory}]}})
        };
        let hash = |paths_of: &[&str], object: &Value| hash_of(&[claim(paths_of)], &[object]);
        let (a, b) = (machine(1, "x"), machine(2, "x"));
        for paths_of in
            [&["/spec/memory"][..], &["/spec/**"], &["/spec/disks[name=a]/size"], &["/spec/*"]]
        {
            assert!(hash(paths_of, &a).is_some());
            assert_ne!(hash(paths_of, &a), hash(paths_of, &b), "{paths_of:?}");
        }
        assert_eq!(hash(&["/spec/image/**"], &a), hash(&["/spec/image/**"], &b));
        assert_ne!(hash(&["/spec/image/**"], &a), hash(&["/spec/image/**"], &machine(1, "y")));
        assert_eq!(
            hash(&["/spec/image/**"], &json!({"apiVersion": "g/v1", "kind": "Other"})),
            None
        );
    }

    #[test]
    fn a_path_claims_a_value_and_with_two_stars_all_of_it() {
        let from = json!({"spec": {"image": {"url": "a", "checksum": 1}, "memory": 1, "x/y": 1}});
        let to = json!({"spec": {"image": {"url": "b", "checksum": 2}, "memory": 2, "x/y": 2}});
        let table: [(&[&str], &[&str]); 5] = [
            (&["/spec/**"], &[]),
            (&["/spec/image/**", "/spec/memory"], &["spec[\"x/y\"]"]),
            (
                &["/spec/image", "/spec/memory", "/spec/x~1y"],
                &["spec.image.checksum", "spec.image.url"],
            ),
            (&["/spec/*/url", "/spec/memory/**", "/spec/x~1y"], &["spec.image.checksum"]),
            (&["/spec/*"], &["spec.image.checksum", "spec.image.url"]),
        ];
        for (claims, rest) in table {
            assert_eq!(unclaimed(claims, &from, &to), rest, "{claims:?}");
        }
    }

    #[test]
    fn an_object_that_appears_is_claimed_if_all_its_members_are() {
        let (without, with) =
            (json!({"spec": {}}), json!({"spec": {"image": {"url": 1, "sum": 2}}}));
        for (from, to) in [(&without, &with), (&with, &without)] {
            assert_eq!(unclaimed(&["/spec/image/**"], from, to), [""; 0]);
            assert_eq!(unclaimed(&["/spec/image/url", "/spec/image/sum"], from, to), [""; 0]);
            assert_eq!(unclaimed(&["/spec/image/url"], from, to), ["spec.image"]);
            assert_eq!(unclaimed(&["/spec/image"], from, to), ["spec.image"]);
        }
        let empty = json!({"spec": {"image": {}}});
        assert_eq!(unclaimed(&["/spec/image/url"], &without, &empty), ["spec.image"]);
    }

    #[test]
    fn a_list_element_is_selected_by_a_key() {
        let files = |files: &[(&str, &str)]| {
            let list: Vec<_> =
                files.iter().map(|(path, text)| json!({"path": path, "content": text})).collect();
            json!({"spec": {"files": list}})
        };
        let old = files(&[("/a", "1"), ("/b", "1")]);
        let of_a = "/spec/files[path=/a]/**";
        for (new, rest) in [
            (files(&[("/a", "2"), ("/b", "1")]), vec![""; 0]),
            (files(&[("/a", "2"), ("/b", "2")]), vec!["spec.files[1].content"]),
            (files(&[("/b", "1")]), vec![]),
            (files(&[("/a", "1")]), vec!["spec.files"]),
            (files(&[("/a", "1"), ("/b", "1"), ("/c", "1")]), vec!["spec.files"]),
            (files(&[("/b", "1"), ("/a", "1")]), vec!["spec.files[0].path", "spec.files[1].path"]),
            (files(&[("/a", "2"), ("/a", "3"), ("/b", "1")]), vec!["spec.files"]),
            (json!({"spec": {}}), vec!["spec.files"]),
            (json!({"spec": {"files": "all"}}), vec!["spec.files"]),
        ] {
            assert_eq!(unclaimed(&[of_a], &old, &new), rest, "{new}");
        }
    }

    #[test]
    fn a_new_element_is_claimed_only_by_a_path_that_names_it() {
        let from = json!({"spec": {"files": [{"path": "/a", "content": "1"}]}});
        let to = json!({"spec": {"files": [
            {"path": "/a", "content": "2"},
            {"path": "/b", "content": "1"},
        ]}});
        let every = ["/spec/files/*/path", "/spec/files/*/content", "/spec/files/*/**"];
        assert_eq!(unclaimed(&every, &from, &to), ["spec.files"]);
        let with_other = [&every[..], &["/spec/files[path=/a]/owner"]].concat();
        assert_eq!(unclaimed(&with_other, &from, &to), ["spec.files"]);
        let with_new = [&every[..], &["/spec/files[path=/b]/**"]].concat();
        assert_eq!(unclaimed(&with_new, &from, &to), [""; 0]);
    }

    #[test]
    fn no_difference_is_no_claim() {
        let value = json!({"spec": {"a": 1}});
        let all = paths(&["/spec/**"]);
        assert!(!claims_all(&all, &[], &value, &value));
        let absent = Path::of(&["spec", "b"]);
        assert!(!claims_all(&all, absent.segments(), &value, &value));
    }

    fn any_claim() -> impl Strategy<Value = &'static str> {
        prop::sample::select(&[
            "/spec/a",
            "/spec/a/**",
            "/spec/*",
            "/spec/*/**",
            "/spec/l/*/c",
            "/spec/l[k=x]/**",
            "/spec/l[k=x]/c",
            "/spec/l[k=y]/c",
            "/spec/l[c=1]/**",
        ])
    }

    fn any_spec() -> impl Strategy<Value = Value> {
        let element = ("[xy]", "[12]").prop_map(|(k, c)| json!({"k": k, "c": c}));
        let list = prop::collection::vec(element, 0..3).prop_map(Value::from);
        let list = prop::option::of(list);
        ("[12]", list).prop_map(|(a, l)| match l {
            Some(l) => json!({"spec": {"a": a, "l": l}}),
            None => json!({"spec": {"a": a}}),
        })
    }

    proptest! {
        #[test]
        fn more_paths_claim_no_less(
            few in prop::collection::vec(any_claim(), 0..3),
            more in prop::collection::vec(any_claim(), 0..3),
            from in any_spec(),
            to in any_spec(),
        ) {
            let rest = unclaimed(&few, &from, &to);
            let both = unclaimed(&[&few[..], &more[..]].concat(), &from, &to);
            prop_assert!(both.iter().all(|path| rest.contains(path)));
        }

        #[test]
        fn everything_is_claimed_by_two_stars_and_nothing_by_no_path(
            a in any_json(),
            b in any_json(),
        ) {
            let (from, to) = (json!({"spec": {"x": a}}), json!({"spec": {"x": b}}));
            prop_assert!(unclaimed(&["/spec/**"], &from, &to).is_empty());
            let all = changes(&Path::default(), Some(&from), Some(&to));
            prop_assert_eq!(unclaimed(&[], &from, &to).len(), all.len());
        }

        /// Applying the claimed changes changes nothing else.
        #[test]
        fn what_is_not_claimed_stays(a in any_json(), b in any_json(), c in any_json(), d in any_json()) {
            let (from, to) = (json!({"spec": {"x": a, "y": b}}), json!({"spec": {"x": c, "y": d}}));
            let claims = paths(&["/spec/x/**"]);
            let mut value = from.clone();
            for change in changes(&Path::default(), Some(&from), Some(&to)) {
                if claims_all(&claims, change.path.segments(), &from, &to) {
                    change.apply(&mut value);
                }
            }
            prop_assert_eq!(&value["spec"]["x"], &to["spec"]["x"]);
            prop_assert_eq!(&value["spec"]["y"], &from["spec"]["y"]);
        }
    }
}
