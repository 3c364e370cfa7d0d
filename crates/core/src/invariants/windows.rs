//! Invariant 9: maintenance windows, judged from the JSON of an UpdateGroup.

use jiff::Timestamp;
use refit_kinds::json::{text, time};
use serde_json::Value;

const DAY_SECONDS: i64 = 86_400;
/// How many days before a moment a weekly window that is open then may have opened.
const LONGEST_DAYS: i64 = 7;
const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
/// The first day of the epoch is a Thursday.
const FIRST_DAY: i64 = 3;

/// Machine uid and beginning of each slot, and of each update without one.
pub(super) fn slots(group: &Value) -> Vec<(&str, Timestamp)> {
    let lists = ["/status/slots", "/status/undisturbed"];
    let lists = lists.into_iter().filter_map(|list| group.pointer(list)?.as_array());
    let slots = lists.flatten();
    slots.filter_map(|slot| Some((text(slot, "/machineUid"), time(slot, "/since")?))).collect()
}

/// Whether a machine of a group may begin at a moment. Windows in other zones than UTC, and with dates that are left
/// out, count as open.
pub(super) fn may_begin(group: &Value, at: Timestamp) -> bool {
    let Some(windows) = group.pointer("/spec/pacing/windows").filter(|all| !all.is_null()) else {
        return true;
    };
    let all = |field: &str| windows.get(field).and_then(Value::as_array).into_iter().flatten();
    let is_once = |window: &Value| {
        let (from, until) = (time(window, "/from"), time(window, "/until"));
        from.is_some_and(|from| from <= at) && until.is_some_and(|until| at < until)
    };
    all("once").any(is_once) || all("weekly").any(|window| is_open(window, at))
}

fn is_open(window: &Value, at: Timestamp) -> bool {
    if text(window, "/timeZone") != "UTC" || window.get("except").is_some() {
        return true;
    }
    let minutes = |text: &str| {
        let (hours, minutes) = text.split_once(':')?;
        Some(hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?)
    };
    let Some(start) = minutes(text(window, "/start")) else { return false };
    let lasts = window.get("durationMinutes").and_then(Value::as_i64).unwrap_or_default() * 60;
    let days: Vec<&str> = window
        .get("days")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let (now, today) = (at.as_second(), at.as_second().div_euclid(DAY_SECONDS));
    (today - LONGEST_DAYS..=today).any(|day| {
        let opens = day * DAY_SECONDS + start * 60;
        let name = usize::try_from((day + FIRST_DAY).rem_euclid(7)).ok().and_then(|n| DAYS.get(n));
        name.is_some_and(|name| days.contains(name)) && opens <= now && now < opens + lasts
    })
}
