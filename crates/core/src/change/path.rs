//! Paths into JSON: how they are written and followed.

use std::{borrow::Borrow, collections::BTreeSet, fmt, ops::Bound};

use serde_json::{Map, Value};

/// One step into a JSON value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// A member of an object.
    Key(String),
    /// An element of an array.
    Index(usize),
}

/// A path into a JSON value, such as `spec.files[0].content`.
///
/// ```
/// use refit_core::change::path::Path;
///
/// let path = Path::of(&["metadata", "annotations"]).key("a/b.c").index(2);
/// assert_eq!(path.to_string(), r#"metadata.annotations["a/b.c"][2]"#);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(Vec<Segment>);

impl Borrow<[Segment]> for Path {
    fn borrow(&self) -> &[Segment] {
        &self.0
    }
}

impl From<&[Segment]> for Path {
    fn from(segments: &[Segment]) -> Self {
        Self(segments.to_vec())
    }
}

impl Path {
    /// Builds a path of object members.
    pub fn of(keys: &[&str]) -> Self {
        Self(keys.iter().map(|key| Segment::Key((*key).to_owned())).collect())
    }

    /// The path extended by an object member.
    pub fn key(&self, key: &str) -> Self {
        self.with(Segment::Key(key.to_owned()))
    }

    /// The path extended by an array index.
    pub fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    /// What `walk` finds one segment further down; the path is then as before.
    pub(super) fn step<R>(&mut self, segment: Segment, walk: impl FnOnce(&mut Self) -> R) -> R {
        self.0.push(segment);
        let found = walk(self);
        self.0.pop();
        found
    }

    fn with(&self, segment: Segment) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment);
        Self(segments)
    }

    /// The segments of the path.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Whether the path is one of `paths`, or a prefix of one, or extends one.
    pub fn touches_any(&self, paths: &BTreeSet<Self>) -> bool {
        let extends = (0..=self.0.len()).any(|length| paths.contains(&self.0[..length]));
        // In order, the paths that extend this one come right after it.
        let next =
            paths.range::<[Segment], _>((Bound::Included(&*self.0), Bound::Unbounded)).next();
        extends || next.is_some_and(|next| next.starts_with(self))
    }

    /// Whether `prefix` is a prefix of the path, or equal to it.
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.0.starts_with(&prefix.0)
    }

    /// The value at the path.
    pub fn get<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(value, |at, segment| match segment {
            Segment::Key(key) => at.get(key),
            Segment::Index(index) => at.get(index),
        })
    }

    /// Sets `new` at the path, or removes the existing value. Missing objects on the way are
    /// created; an array is never extended.
    pub fn put(&self, value: &mut Value, new: Option<Value>) {
        let Some((last, way)) = self.0.split_last() else {
            *value = new.unwrap_or(Value::Null);
            return;
        };
        let mut at = value;
        for segment in way {
            let next = match segment {
                Segment::Key(key) => {
                    if new.is_none() && at.get(key).is_none() {
                        return;
                    }
                    object(at).entry(key.clone()).or_insert(Value::Null)
                }
                Segment::Index(index) => match at.get_mut(index) {
                    Some(next) => next,
                    None => return,
                },
            };
            at = next;
        }
        match (last, new) {
            (Segment::Key(key), Some(new)) => {
                object(at).insert(key.clone(), new);
            }
            (Segment::Key(key), None) => {
                if let Value::Object(map) = at {
                    map.remove(key);
                }
            }
            (Segment::Index(index), Some(new)) => {
                if let Some(place) = at.get_mut(index) {
                    *place = new;
                }
            }
            (Segment::Index(_), None) => {}
        }
    }

    /// The path as an RFC 6901 pointer.
    pub fn pointer(&self) -> String {
        self.0.iter().fold(String::new(), |text, segment| match segment {
            Segment::Key(key) => {
                format!("{text}/{}", key.replace('~', "~0").replace('/', "~1"))
            }
            Segment::Index(index) => format!("{text}/{index}"),
        })
    }
}

/// Returns the object in `value`, replacing any other value with an empty object.
fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("it is an object, set above")
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) if !is_plain(key) => write!(f, "[{key:?}]")?,
                Segment::Key(key) if place == 0 => f.write_str(key)?,
                Segment::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn ambiguous_keys_are_quoted() {
        assert_eq!(Path::of(&["a", "b-c", "d.e", ""]).to_string(), r#"a.b-c["d.e"][""]"#);
        assert_eq!(Path::of(&["x/y"]).key("z").to_string(), r#"["x/y"].z"#);
    }

    #[test]
    fn pointers_are_escaped() {
        assert_eq!(Path::of(&["a/b", "c~d"]).index(1).pointer(), "/a~1b/c~0d/1");
    }

    #[test]
    fn put_creates_parents_and_remove_does_not() {
        let mut value = json!({});
        Path::of(&["a", "b"]).put(&mut value, Some(json!(1)));
        assert_eq!(value, json!({"a": {"b": 1}}));
        Path::of(&["c", "d"]).put(&mut value, None);
        Path::of(&["a", "b"]).put(&mut value, None);
        assert_eq!(value, json!({"a": {}}));
    }

    #[test]
    fn elements_are_replaced_but_never_added() {
        let mut value = json!({"a": [1, 2]});
        Path::of(&["a"]).index(1).put(&mut value, Some(json!(3)));
        Path::of(&["a"]).index(7).put(&mut value, Some(json!(4)));
        assert_eq!(value, json!({"a": [1, 3]}));
    }

    fn any_path() -> impl Strategy<Value = Path> {
        let segment =
            prop_oneof!["[ab]".prop_map(Segment::Key), (0..2_usize).prop_map(Segment::Index)];
        proptest::collection::vec(segment, 0..4).prop_map(Path)
    }

    proptest! {
        #[test]
        fn paths_touch_if_one_is_a_prefix_of_the_other(
            path in any_path(),
            paths in proptest::collection::btree_set(any_path(), 0..6),
        ) {
            let touched = paths.iter().any(|o| o.starts_with(&path) || path.starts_with(o));
            prop_assert_eq!(path.touches_any(&paths), touched);
        }
    }
}
