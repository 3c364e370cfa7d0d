//! Claims of an Updater: which changes of a machine's objects it makes.
//!
//! A path names a value of the machine's own object; in a template the same value is found below
//! `/spec/template`.
//!
//! | path | claims |
//! |---|---|
//! | `/spec/memoryMiB` | the value, unless it is an object or a list |
//! | `/spec/image/**` | the value and everything in it |
//! | `/spec/disks/*/sizeGiB` | the value in each member or element |
//! | `/spec/files[path=/etc/x]/content` | the value in the list element whose `path` is `/etc/x` |
//!
//! In a name, `~1` stands for `/` and `~0` for `~`, as in a JSON pointer.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde_json::Value;

use super::path::Segment;

/// A pattern of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath {
    text: String,
    steps: Vec<Step>,
    /// Whether it claims everything below as well.
    below: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// A member of an object.
    Key(String),
    /// Any member of an object or element of a list.
    Any,
    /// The element of a list in which a member has a value.
    Element { key: String, value: String },
}

/// Why a text is not a path of a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadClaimPath {
    /// Cluster API compares nothing but specs.
    #[error("{0:?} does not begin with /spec/")]
    NotInSpec(String),
    /// Two slashes follow each other, or the path ends with one.
    #[error("{0:?} has an empty name")]
    EmptyName(String),
    /// `**` is not at the end.
    #[error("{0:?} has ** before its end")]
    BelowNotLast(String),
    /// An element is not selected by `[key=value]`.
    #[error(
        "{0:?} selects a list element otherwise than by [key=value] after the name of the list"
    )]
    BadElement(String),
}

impl FromStr for ClaimPath {
    type Err = BadClaimPath;

    fn from_str(text: &str) -> Result<Self, BadClaimPath> {
        let wrong = |why: fn(String) -> BadClaimPath| why(text.to_owned());
        let mut rest = text.strip_prefix('/').ok_or_else(|| wrong(BadClaimPath::NotInSpec))?;
        let (mut steps, mut below) = (Vec::new(), false);
        loop {
            let (name, tail) = rest.split_at(rest.find(['/', '[']).unwrap_or(rest.len()));
            match name {
                _ if below => return Err(wrong(BadClaimPath::BelowNotLast)),
                "" => return Err(wrong(BadClaimPath::EmptyName)),
                "**" => below = true,
                "*" => steps.push(Step::Any),
                name => steps.push(Step::Key(name.replace("~1", "/").replace("~0", "~"))),
            }
            let tail = match tail.strip_prefix('[') {
                None => tail,
                Some(element) => {
                    let (step, tail) = element_step(element)
                        .filter(|_| !below)
                        .ok_or_else(|| wrong(BadClaimPath::BadElement))?;
                    steps.push(step);
                    tail
                }
            };
            match tail.strip_prefix('/') {
                Some(tail) => rest = tail,
                None if tail.is_empty() => break,
                None => return Err(wrong(BadClaimPath::BadElement)),
            }
        }
        let in_spec = steps.first() == Some(&Step::Key("spec".to_owned()));
        if !in_spec || steps.len() == 1 && !below {
            return Err(wrong(BadClaimPath::NotInSpec));
        }
        Ok(Self { text: text.to_owned(), steps, below })
    }
}

/// The step of `key=value]`, and what follows.
fn element_step(text: &str) -> Option<(Step, &str)> {
    let (selector, tail) = text.split_once(']')?;
    let (key, value) = selector.split_once('=').filter(|(key, _)| !key.is_empty())?;
    Some((Step::Element { key: key.to_owned(), value: value.to_owned() }, tail))
}

impl fmt::Display for ClaimPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether the paths claim everything that differs between `from` and `to` at `at`. Both are whole
/// objects of a machine, or what a template makes of one.
pub fn claim(paths: &[ClaimPath], at: &[Segment], from: &Value, to: &Value) -> bool {
    let (mut from, mut to) = (Some(from), Some(to));
    let mut left: Vec<Left<'_>> = paths.iter().map(Left::all).collect();
    for segment in at {
        (from, to) = (child(from, segment), child(to, segment));
        left = further(&left, segment, from, to);
    }
    covered(&left, from, to)
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

    fn further(self, segment: &Segment, from: Option<&Value>, to: Option<&Value>) -> Option<Self> {
        let Some((step, steps)) = self.steps.split_first() else {
            return self.below.then_some(self);
        };
        let matches = match (step, segment) {
            (Step::Any, Segment::Key(_) | Segment::Index(_)) => true,
            (Step::Key(wanted), Segment::Key(key)) => wanted == key,
            (Step::Element { key, value }, Segment::Index(_)) => {
                [from, to].into_iter().flatten().all(|element| text(element, key) == Some(value))
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

fn text<'a>(element: &'a Value, key: &str) -> Option<&'a str> {
    element.get(key)?.as_str()
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

/// A list in which elements are added or removed, with paths that select elements by one key: each
/// element that differs is claimed, and the others keep their order.
fn elements_covered(left: &[Left<'_>], from: Option<&Value>, to: Option<&Value>) -> bool {
    let keys = left.iter().filter_map(|one| match one.steps.first()? {
        Step::Element { key, .. } => Some(key.as_str()),
        Step::Key(_) | Step::Any => None,
    });
    let mut keys: Vec<&str> = keys.collect();
    keys.dedup();
    let [key] = keys[..] else {
        return false;
    };
    let (Some(old), Some(new)) = (named_elements(from, key), named_elements(to, key)) else {
        return false;
    };
    let all: BTreeSet<&str> = old.iter().chain(&new).map(|(name, _)| *name).collect();
    !all.is_empty()
        && in_both(&old, &new) == in_both(&new, &old)
        && all.into_iter().all(|name| {
            let (from, to) = (named(&old, name), named(&new, name));
            // The place in its list does not matter to a path.
            covered(&further(left, &Segment::Index(0), from, to), from, to)
        })
}

/// Elements of a list, with the text that names each.
type Named<'a> = Vec<(&'a str, &'a Value)>;

/// The names in the one list that are in the other, too, in the order of the one.
fn in_both<'a>(one: &Named<'a>, other: &Named<'_>) -> Vec<&'a str> {
    one.iter().map(|(name, _)| *name).filter(|name| named(other, name).is_some()).collect()
}

fn named<'a>(elements: &Named<'a>, name: &str) -> Option<&'a Value> {
    elements.iter().find(|(other, _)| *other == name).map(|(_, element)| *element)
}

/// The elements of a list with the text that names each; `None` if one has no name, or two have the
/// same.
fn named_elements<'a>(list: Option<&'a Value>, key: &str) -> Option<Named<'a>> {
    let elements = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let all: Option<Named<'a>> =
        elements.iter().map(|element| Some((text(element, key)?, element))).collect();
    let all = all?;
    let names: BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
    (names.len() == all.len()).then_some(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::change::{diff::changes, path::Path, testing::any_json};

    fn paths(texts: &[&str]) -> Vec<ClaimPath> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// The paths that differ and are not claimed.
    fn unclaimed(claims: &[&str], from: &Value, to: &Value) -> Vec<String> {
        let claims = paths(claims);
        changes(&Path::default(), Some(from), Some(to))
            .into_iter()
            .filter(|change| !claim(&claims, change.path.segments(), from, to))
            .map(|change| change.path.to_string())
            .collect()
    }

    #[test]
    fn a_bad_path_is_refused_with_its_text() {
        use BadClaimPath::{BadElement, BelowNotLast, EmptyName, NotInSpec};
        type Why = fn(String) -> BadClaimPath;
        let table: [(&str, Why); 12] = [
            ("", NotInSpec),
            ("spec/a", NotInSpec),
            ("/spec", NotInSpec),
            ("/metadata/labels/**", NotInSpec),
            ("/**", NotInSpec),
            ("/spec/", EmptyName),
            ("/spec//a", EmptyName),
            ("/spec/**/a", BelowNotLast),
            ("/spec/a[path=/x", BadElement),
            ("/spec/a[0]", BadElement),
            ("/spec/a[=x]", BadElement),
            ("/spec/a[b=c]d", BadElement),
        ];
        for (text, why) in table {
            assert_eq!(text.parse::<ClaimPath>(), Err(why(text.to_owned())), "{text}");
        }
        for text in ["/spec/**", "/spec/a~1b", "/spec/*/b", "/spec/files[path=/etc/x]/content"] {
            assert_eq!(text.parse::<ClaimPath>().unwrap().to_string(), text);
        }
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

    proptest! {
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

        /// Whoever applies the claimed changes changes nothing else.
        #[test]
        fn what_is_not_claimed_stays(a in any_json(), b in any_json(), c in any_json(), d in any_json()) {
            let (from, to) = (json!({"spec": {"x": a, "y": b}}), json!({"spec": {"x": c, "y": d}}));
            let claims = paths(&["/spec/x/**"]);
            let mut value = from.clone();
            for change in changes(&Path::default(), Some(&from), Some(&to)) {
                if claim(&claims, change.path.segments(), &from, &to) {
                    change.apply(&mut value);
                }
            }
            prop_assert_eq!(&value["spec"]["x"], &to["spec"]["x"]);
            prop_assert_eq!(&value["spec"]["y"], &from["spec"]["y"]);
        }
    }
}
