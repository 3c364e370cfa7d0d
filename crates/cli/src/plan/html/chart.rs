//! The drawings of a page: bars in HTML, so that text keeps its size, and curves in SVG without text.

use maud::{Markup, html};
use refit_predict::timeline::{Action, Timeline};

use crate::printer::duration;

/// How many bars a drawing has at most.
pub(super) const MOST_BARS: usize = 60;
/// Width and height of a curve, in its own units: the page stretches it.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// A bar.
pub(super) struct Row {
    /// What it stands for.
    pub(super) label: String,
    /// What is done: a class of the style.
    pub(super) class: &'static str,
    /// When it begins to prepare, in seconds.
    pub(super) prepare: i64,
    /// When it begins, in seconds.
    pub(super) start: i64,
    /// When it ends, in seconds.
    pub(super) end: i64,
}

/// Bars on a common axis of time.
pub(super) fn bars(rows: &[Row]) -> Markup {
    let first = rows.iter().map(|row| row.prepare).min().unwrap_or_default();
    let last = rows.iter().map(|row| row.end).max().unwrap_or_default();
    let axis = Axis { first, last };
    html! {
        div.bars {
            @for row in rows {
                div.row title={ (row.label) ": +" (duration(row.start)) " to +" (duration(row.end)) } {
                    span.label { (row.label) }
                    div.track {
                        @if row.prepare < row.start { div.bar.prepare style=(axis.place(row.prepare, row.start)) {} }
                        div class={ "bar " (row.class) } style=(axis.place(row.start, row.end)) {}
                    }
                }
            }
            div.row { span.label {} (axis.ticks()) }
        }
        p.legend {
            @if rows.iter().any(|row| row.prepare < row.start) { span { i.prepare {} "prepares" } }
            @for (class, word) in [("update", "updated in place"), ("create", "created"), ("delete", "deleted")] {
                @if rows.iter().any(|row| row.class == class) { span { i class=(class) {} (word) } }
            }
        }
    }
}

/// How many points a curve of progress has.
const POINTS: i64 = 200;

/// How many machines are done at each time.
pub(super) fn progress(timeline: &Timeline) -> Markup {
    let turns = timeline.turns.iter().filter(|turn| turn.action != Action::Delete);
    let mut ends: Vec<i64> = turns.map(|turn| turn.end_seconds).collect();
    ends.sort_unstable();
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let length = timeline.end() - timeline.start();
    let times = (0..=POINTS).map(|point| timeline.start() + length * point / POINTS);
    let points: Vec<(i64, i64)> =
        times.map(|time| (time, count(ends.partition_point(|end| *end <= time)))).collect();
    curve("machines that are done", timeline, &points, (0, count(ends.len())))
}

/// How many machines are available at each time.
pub(super) fn availability(timeline: &Timeline) -> Markup {
    let points: Vec<(i64, i64)> =
        timeline.availability.curve.iter().map(|level| (level.seconds, level.available)).collect();
    let most = points.iter().map(|point| point.1).max().unwrap_or_default();
    // From zero, unless the difference could not be seen.
    let least = timeline.availability.least;
    let difference = most - least;
    let is_small = difference > 0 && difference.saturating_mul(10) < most;
    let floor = if is_small { least - difference } else { 0 };
    curve("available machines", timeline, &points, (floor.max(0), most))
}

/// Steps from point to point, filled.
fn curve(
    name: &str,
    timeline: &Timeline,
    points: &[(i64, i64)],
    (low, high): (i64, i64),
) -> Markup {
    let axis = Axis { first: timeline.start(), last: timeline.end() };
    let y = |value: i64| {
        let share = ratio(value - low, high - low);
        HEIGHT - share * HEIGHT
    };
    let mut last = y(low);
    let mut corners = vec![format!("0,{HEIGHT}")];
    for (seconds, value) in points {
        let x = axis.share(*seconds) * WIDTH;
        let next = y(*value);
        corners.extend([format!("{x:.1},{last:.1}"), format!("{x:.1},{next:.1}")]);
        last = next;
    }
    corners.extend([format!("{WIDTH},{last:.1}"), format!("{WIDTH},{HEIGHT}")]);
    let corners = corners.join(" ");
    html! {
        figure {
            figcaption { (name) }
            div.curve {
                span.scale { span { (high) } span { (low) } }
                svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(name) {
                    polygon points=(corners) {}
                }
                span {} (axis.ticks())
            }
        }
    }
}

/// An axis of time, in seconds.
struct Axis {
    first: i64,
    last: i64,
}

impl Axis {
    /// How far along the axis a time is: 0 to 1.
    fn share(&self, seconds: i64) -> f64 {
        ratio(seconds - self.first, self.last - self.first)
    }

    /// Where a bar is.
    fn place(&self, start: i64, end: i64) -> String {
        let (from, until) = (self.share(start) * 100.0, self.share(end) * 100.0);
        // What takes no time is seen at the end of the axis, too.
        format!("left:min({from:.2}%,100% - 3px);width:{:.2}%", until - from)
    }

    fn ticks(&self) -> Markup {
        let length = self.last - self.first;
        let times = (0..=4).map(|quarter| self.first + length * quarter / 4);
        html! { div.ticks { @for time in times { span { "+" (duration(time)) } } } }
    }
}

/// A part of a whole, 0 to 1.
fn ratio(part: i64, whole: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a place in a drawing")]
    let share = part as f64 / whole.max(1) as f64;
    share.clamp(0.0, 1.0)
}
