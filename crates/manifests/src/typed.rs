//! Finds fields that do not have the expected type.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Manifest, Problem, shown};

/// The expected value of a version field.
pub const A_VERSION: &str = "a version vX.Y.Z such as v1.34.2";
/// Maximum number of problems per object; further ones are omitted.
const MOST_PROBLEMS: usize = 50;

/// Every field below `base` whose type is not the one of `K`.
///
/// Deserialization stops at the first error. So each invalid field of a copy is replaced with a
/// readable value, and the copy is read again, until no error is left.
pub fn typed<K: DeserializeOwned>(manifest: &Manifest, base: &str) -> Vec<Problem> {
    let Some(mut copy) = manifest.object.pointer(base).cloned() else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    let mut fault = fault_of::<K>(&copy);
    while let Some((pointer, message)) = fault.take() {
        problems.push(type_problem(manifest, &format!("{base}{pointer}"), &message));
        if problems.len() == MOST_PROBLEMS {
            break;
        }
        let fixes = [None, Some(json!("")), Some(json!(0)), Some(json!(false))];
        let fixes = fixes.into_iter().chain([json!("v1.0.0"), json!([]), json!({})].map(Some));
        for fix in fixes {
            let mut attempt = copy.clone();
            set(&mut attempt, &pointer, fix);
            let next = fault_of::<K>(&attempt);
            if next.as_ref().is_none_or(|(at, _)| *at != pointer) {
                (copy, fault) = (attempt, next);
                break;
            }
        }
    }
    problems
}

/// The location and the cause of the error if a value cannot be read as `K`.
fn fault_of<K: DeserializeOwned>(value: &Value) -> Option<(String, String)> {
    let error = serde_path_to_error::deserialize::<_, K>(value).err()?;
    let mut pointer = String::new();
    for segment in error.path() {
        if let serde_path_to_error::Segment::Seq { index } = segment {
            pointer.extend(["/", &index.to_string()]);
        } else if let serde_path_to_error::Segment::Map { key } = segment {
            pointer.extend(["/", &escaped(key)]);
        }
    }
    let message = error.inner().to_string();
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    if let Some(field) = missing {
        pointer.extend(["/", &escaped(field)]);
    }
    Some((pointer, message))
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Sets or removes the field at `pointer`.
fn set(value: &mut Value, pointer: &str, to: Option<Value>) {
    let Some((parent, key)) = pointer.rsplit_once('/') else {
        *value = to.unwrap_or_default();
        return;
    };
    let key = key.replace("~1", "/").replace("~0", "~");
    match (value.pointer_mut(parent), to) {
        (Some(Value::Object(map)), Some(to)) => {
            map.insert(key, to);
        }
        (Some(Value::Object(map)), None) => {
            map.remove(&key);
        }
        (Some(Value::Array(items)), to) => {
            if let Some(item) = key.parse::<usize>().ok().and_then(|i| items.get_mut(i)) {
                *item = to.unwrap_or_default();
            }
        }
        _ => {}
    }
}

fn type_problem(manifest: &Manifest, pointer: &str, message: &str) -> Problem {
    let got = shown(manifest.object.pointer(pointer));
    let want = if pointer.ends_with("/version") {
        A_VERSION.to_owned()
    } else if message.starts_with("missing field") {
        "a value: the field is required".to_owned()
    } else {
        wanted(message)
    };
    manifest.problem(pointer, got, want)
}

/// The type that serde expected, in the terms of a manifest.
fn wanted(message: &str) -> String {
    let expected = message.split(", expected ").nth(1).unwrap_or(message);
    let expected = expected.split(" at line").next().unwrap_or(expected);
    match expected {
        "i32" | "i64" | "u32" | "u64" => "an integer".to_owned(),
        "a string" | "a boolean" => expected.to_owned(),
        "a sequence" => "a list".to_owned(),
        text if text.starts_with("a map") || text.starts_with("struct ") => "an object".to_owned(),
        text if text.contains("IntOrString") => "an integer or a percentage such as 25%".to_owned(),
        text => text.to_owned(),
    }
}
