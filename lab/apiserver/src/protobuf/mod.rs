//! Bodies in protocol buffers. kubectl's typed clients (create, drain, `auth can-i`, ...) send no
//! other format for built-in kinds; they accept JSON responses. `fields.txt` lists all fields;
//! `tools/kubectl/fields` generates it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

mod wire;

#[cfg(test)]
mod tests;

use wire::{Reader, Wire};

/// The content type of such a body.
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Prefix of such a body.
const MAGIC: &[u8] = b"k8s\0";

const MOST_DEPTH: usize = crate::object::MOST_DEPTH;

/// How a field is encoded, and its form in JSON.
#[derive(Debug, Clone, PartialEq)]
enum Layout {
    Text,
    Bool,
    Int,
    Double,
    /// Base64 in JSON.
    Bytes,
    /// RFC 3339, to the second.
    Time,
    /// RFC 3339, to the microsecond.
    MicroTime,
    Quantity,
    IntOrString,
    /// JSON in a message.
    Json,
    /// A list of strings in a message.
    Strings,
    Message(&'static str),
    List(Box<Self>),
    Map(Box<Self>),
}

impl Layout {
    fn read(word: &'static str) -> Self {
        if let Some(item) = word.strip_prefix("[]") {
            return Self::List(Box::new(Self::read(item)));
        }
        if let Some(item) = word.strip_prefix("{}") {
            return Self::Map(Box::new(Self::read(item)));
        }
        match word {
            "string" => Self::Text,
            "bool" => Self::Bool,
            "int" => Self::Int,
            "double" => Self::Double,
            "bytes" => Self::Bytes,
            "time" => Self::Time,
            "microtime" => Self::MicroTime,
            "quantity" => Self::Quantity,
            "intstr" => Self::IntOrString,
            "json" => Self::Json,
            "strings" => Self::Strings,
            name => Self::Message(name),
        }
    }
}

#[derive(Debug)]
struct Field {
    /// Whether JSON omits an unset value.
    omit_zero: bool,
    /// `None` if the message is inline: its fields are members of the parent.
    name: Option<&'static str>,
    layout: Layout,
}

type Fields = BTreeMap<u32, Field>;

/// The content of `fields.txt`.
struct Tables {
    /// Type of each `group/version/kind`.
    kinds: BTreeMap<&'static str, &'static str>,
    types: BTreeMap<&'static str, Fields>,
}

impl Tables {
    fn get() -> &'static Self {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        TABLES.get_or_init(|| Self::read(include_str!("fields.txt")))
    }

    fn read(text: &'static str) -> Self {
        let mut tables = Self { kinds: BTreeMap::new(), types: BTreeMap::new() };
        let mut fields = &mut Fields::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&'static str> = line.split(' ').collect();
            match words.as_slice() {
                ["kind", kind, name] => {
                    tables.kinds.insert(kind, name);
                }
                ["type", name] => fields = tables.types.entry(name).or_default(),
                [number, name, layout] => {
                    let omit_zero = number.ends_with('?');
                    let number = number.trim_end_matches(['=', '?']);
                    let field = Field {
                        omit_zero,
                        name: (*name != "-").then_some(*name),
                        layout: Layout::read(layout),
                    };
                    if let Ok(number) = number.parse() {
                        fields.insert(number, field);
                    }
                }
                _ => {}
            }
        }
        tables
    }
}

/// Decodes the object in a body.
pub(crate) fn decode(body: &[u8]) -> Result<Value, String> {
    let envelope = body
        .strip_prefix(MAGIC)
        .ok_or("the body does not start with the prefix of Kubernetes protocol buffers")?;
    let (mut meta, mut raw) = (&[][..], &[][..]);
    let mut reader = Reader(envelope);
    while let Some((number, value)) = reader.next()? {
        match (number, value) {
            (1, Wire::Bytes(bytes)) => meta = bytes,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let (mut api_version, mut kind) = (String::new(), String::new());
    let mut reader = Reader(meta);
    while let Some((number, value)) = reader.next()? {
        match number {
            1 => api_version = text(&value)?,
            2 => kind = text(&value)?,
            _ => {}
        }
    }
    let name = match kind.as_str() {
        "DeleteOptions" => kind.clone(),
        kind => format!("{api_version}/{kind}"),
    };
    let tables = Tables::get();
    let type_name = tables
        .kinds
        .get(name.as_str())
        .ok_or_else(|| format!("no kind {kind:?} is registered for version {api_version:?}"))?;
    let mut object = Map::new();
    message(tables, type_name, raw, &mut object, 0)?;
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    Ok(Value::Object(object))
}

fn text(value: &Wire<'_>) -> Result<String, String> {
    String::from_utf8(value.bytes()?.to_vec()).map_err(|_| "a string is not UTF-8".to_owned())
}

/// Adds the fields of a message to a map.
fn message(
    tables: &Tables,
    type_name: &str,
    bytes: &[u8],
    into: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), String> {
    if depth > MOST_DEPTH {
        return Err(format!("messages nest more than {MOST_DEPTH} levels deep"));
    }
    let Some(fields) = tables.types.get(type_name) else {
        return Ok(());
    };
    let mut reader = Reader(bytes);
    while let Some((number, value)) = reader.next()? {
        let Some(field) = fields.get(&number) else {
            continue;
        };
        let Some(name) = field.name else {
            if let Layout::Message(type_name) = &field.layout {
                message(tables, type_name, value.bytes()?, into, depth + 1)?;
            }
            continue;
        };
        let wrong = |why: String| format!("{type_name}.{name}: {why}");
        match &field.layout {
            Layout::List(item) => {
                let list = into.entry(name).or_insert_with(|| json!([]));
                let items = items(tables, item, &value, depth).map_err(wrong)?;
                if let Some(list) = list.as_array_mut() {
                    list.extend(items);
                }
            }
            Layout::Map(item) => {
                let map = into.entry(name).or_insert_with(|| json!({}));
                let (key, value) = pair(tables, item, &value, depth).map_err(wrong)?;
                if let Some(map) = map.as_object_mut() {
                    map.insert(key, value);
                }
            }
            layout => {
                let value = single(tables, layout, &value, depth).map_err(wrong)?;
                let unset = value.is_null() || (field.omit_zero && is_zero(&value));
                if !unset {
                    into.insert(name.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// One item, or a sequence of packed numbers.
fn items(
    tables: &Tables,
    layout: &Layout,
    value: &Wire<'_>,
    depth: usize,
) -> Result<Vec<Value>, String> {
    if let (Layout::Int, Wire::Bytes(bytes)) = (layout, value) {
        let mut reader = Reader(bytes);
        let mut all = Vec::new();
        while let Some(number) = reader.packed()? {
            all.push(json!(number.cast_signed()));
        }
        return Ok(all);
    }
    Ok(vec![single(tables, layout, value, depth)?])
}

/// An entry of a map: its key is field 1, its value field 2.
fn pair(
    tables: &Tables,
    layout: &Layout,
    value: &Wire<'_>,
    depth: usize,
) -> Result<(String, Value), String> {
    let (mut key, mut found) = (String::new(), None);
    let mut reader = Reader(value.bytes()?);
    while let Some((number, value)) = reader.next()? {
        match number {
            1 => key = text(&value)?,
            2 => found = Some(single(tables, layout, &value, depth)?),
            _ => {}
        }
    }
    let found = found.unwrap_or_else(|| match layout {
        Layout::Text | Layout::Bytes | Layout::Quantity => json!(""),
        Layout::Int => json!(0),
        _ => json!({}),
    });
    Ok((key, found))
}

/// A value that is neither a list nor a map.
fn single(
    tables: &Tables,
    layout: &Layout,
    value: &Wire<'_>,
    depth: usize,
) -> Result<Value, String> {
    Ok(match layout {
        Layout::Text => json!(text(value)?),
        Layout::Bool => json!(value.number()? != 0),
        Layout::Int => json!(value.number()?.cast_signed()),
        Layout::Double => json!(value.double()?),
        Layout::Bytes => json!(STANDARD.encode(value.bytes()?)),
        Layout::Time | Layout::MicroTime => time(value.bytes()?, *layout == Layout::MicroTime)?,
        Layout::Quantity => json!(strings(value.bytes()?)?.pop().unwrap_or_default()),
        Layout::IntOrString => int_or_string(value.bytes()?)?,
        Layout::Json => json_inside(value.bytes()?)?,
        Layout::Strings => json!(strings(value.bytes()?)?),
        Layout::Message(type_name) => {
            let mut map = Map::new();
            message(tables, type_name, value.bytes()?, &mut map, depth + 1)?;
            Value::Object(map)
        }
        Layout::List(_) | Layout::Map(_) => {
            return Err("a list inside a list is not supported".to_owned());
        }
    })
}

/// A timestamp is seconds and nanoseconds since 1970; an empty message is null.
fn time(bytes: &[u8], micro: bool) -> Result<Value, String> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((number, value)) = reader.next()? {
        match number {
            1 => seconds = value.number()?.cast_signed(),
            2 => nanos = value.number()?.cast_signed(),
            _ => {}
        }
    }
    let nanos = i32::try_from(nanos).map_err(|_| "a timestamp has too many nanoseconds")?;
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|error| error.to_string())?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(json!(time.strftime(format).to_string()))
}

/// The strings of field 1.
fn strings(bytes: &[u8]) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    let mut reader = Reader(bytes);
    while let Some((number, value)) = reader.next()? {
        if number == 1 {
            all.push(text(&value)?);
        }
    }
    Ok(all)
}

fn int_or_string(bytes: &[u8]) -> Result<Value, String> {
    let (mut is_text, mut number_value, mut text_value) = (false, 0, String::new());
    let mut reader = Reader(bytes);
    while let Some((number, value)) = reader.next()? {
        match number {
            1 => is_text = value.number()? != 0,
            2 => number_value = value.number()?.cast_signed(),
            3 => text_value = text(&value)?,
            _ => {}
        }
    }
    Ok(if is_text { json!(text_value) } else { json!(number_value) })
}

fn json_inside(bytes: &[u8]) -> Result<Value, String> {
    let mut raw = &[][..];
    let mut reader = Reader(bytes);
    while let Some((number, value)) = reader.next()? {
        if number == 1 {
            raw = value.bytes()?;
        }
    }
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(raw).map_err(|error| format!("contains invalid JSON: {error}"))
}
