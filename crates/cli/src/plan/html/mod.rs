//! A plan as one page that refers to nothing else: no script, no image, no font from elsewhere.

mod chart;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use refit_predict::{
    GroupPrediction, PredictedOutcome, Prediction,
    timeline::{Source, Timeline},
};

use super::{
    show::{happens, takes, title, version},
    waves::{Wave, waves, word},
};
use crate::printer::duration;

/// How many turns the table of a group lists.
const MOST_ROWS: usize = 1000;
/// The look of the page.
const STYLE: &str = include_str!("style.css");

/// The page.
pub(crate) fn page(plan: &Prediction) -> String {
    let clusters: std::collections::BTreeSet<&str> =
        plan.groups.iter().map(|group| group.cluster.as_str()).collect();
    let of = clusters.into_iter().collect::<Vec<_>>().join(", ");
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Plan: " (of) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Plan for " (of) " " (badge(plan.outcome)) }
                    (totals(plan))
                }
                main {
                    @if plan.groups.is_empty() { p { "No group of machines is affected." } }
                    @if plan.groups.len() > 1 { (overview(plan)) }
                    @for group in &plan.groups { (section(group)) }
                    @if !plan.notes.is_empty() { section { h2 { "Notes" } (list(&plan.notes)) } }
                }
                footer { p { "A prediction of refit plan. Nothing has been changed." } }
            }
        }
    };
    page.into_string()
}

fn badge(outcome: PredictedOutcome) -> Markup {
    let class = match outcome {
        PredictedOutcome::Unchanged => "unchanged",
        PredictedOutcome::InPlace => "good",
        PredictedOutcome::Blocked => "blocked",
        PredictedOutcome::Replaced => "bad",
    };
    html! { span class={ "badge " (class) } { (outcome.word()) } }
}

fn totals(plan: &Prediction) -> Markup {
    let sum = |count: fn(&GroupPrediction) -> i64| plan.groups.iter().map(count).sum::<i64>();
    let end = plan.groups.iter().filter_map(|group| group.timeline.as_ref()).map(Timeline::end);
    let end = end.max().map_or_else(|| "-".to_owned(), |end| format!("~{}", duration(end)));
    let tile = |value: String, what: &str| html! { div { dd { (value) } dt { (what) } } };
    html! {
        dl.totals {
            (tile(sum(|group| group.machines.in_place).to_string(), "updated in place"))
            (tile(sum(|group| group.machines.new).to_string(), "created"))
            (tile(sum(|group| group.machines.deleted).to_string(), "deleted"))
            (tile(end, "until the last machine is back"))
        }
    }
}

/// When each group is changed.
fn overview(plan: &Prediction) -> Markup {
    let timelines = plan.groups.iter().filter_map(|group| Some((group, group.timeline.as_ref()?)));
    let rows: Vec<chart::Row> = timelines
        .map(|(group, timeline)| chart::Row {
            label: title(group),
            class: "update",
            prepare: timeline.start(),
            start: timeline.start(),
            end: timeline.end(),
        })
        .collect();
    html! { @if rows.len() > 1 { section { h2 { "Groups" } (chart::bars(&rows)) } } }
}

fn section(group: &GroupPrediction) -> Markup {
    let counts = group.machines;
    html! {
        section {
            h2 { (title(group)) " " (badge(group.outcome)) }
            p.facts {
                span { (version(group)) }
                span { (counts.now) " machines" }
                span { (counts.in_place) " in place, " (counts.new) " created, " (counts.deleted) " deleted" }
                @if let Some(disruption) = group.disruption { span { "each machine: " (happens(disruption)) } }
                @if let Some(after) = &group.after { span { "after " (after) } }
            }
            (findings(group))
            @if let Some(timeline) = &group.timeline { (turns(group, timeline)) }
            (drains(group))
            (paths(group))
            @if !group.notes.is_empty() { h3 { "Notes" } (list(&group.notes)) }
        }
    }
}

/// What blocks, and what is replaced.
fn findings(group: &GroupPrediction) -> Markup {
    html! {
        @for blocked in &group.blocked_by {
            div.finding.blocked {
                strong { "Blocked: " (blocked.reason) } " " code { (blocked.object) }
                p { (blocked.message) }
            }
        }
        @for cause in &group.causes {
            div.finding.bad {
                strong { "Replaced: " (format!("{:?}", cause.reason)) } " " code { (cause.object) }
                p { (cause.message) }
                @if !cause.remedy.is_empty() { p { "To change that: " (cause.remedy) } }
            }
        }
        @for warning in &group.warnings {
            div.finding.blocked {
                strong { "Warning: " (warning.reason) } " " code { (warning.object) }
                p { (warning.message) }
                p { "To change that: " (warning.remedy) }
            }
        }
    }
}

/// How the drains of nodes go.
fn drains(group: &GroupPrediction) -> Markup {
    let pods: usize = group.drains.iter().map(|drain| drain.pods).sum();
    html! {
        @if !group.drains.is_empty() {
            h3 { "Drains" }
            details {
                summary { (group.drains.len()) " nodes, " (pods) " pods leave" }
                div.scrolls { table {
                    thead { tr { th { "Node" } th { "Pods" } th { "Outcome" } th { "Concerns" } } }
                    tbody { @for drain in group.drains.iter().take(MOST_ROWS) { tr {
                        td { (drain.node) }
                        td { (drain.pods) }
                        td { (format!("{:?}", drain.outcome)) }
                        td { @for concern in &drain.concerns { p.concern { (concern.reason) ": " (concern.message) } } }
                    } } }
                } }
            }
        }
    }
}

fn paths(group: &GroupPrediction) -> Markup {
    html! {
        @if !group.paths.is_empty() {
            h3 { "Changes" }
            div.scrolls { table {
                thead { tr { th { "Path" } th { "Updater" } th { "Objects" } } }
                tbody { @for path in &group.paths { tr {
                    td { code { (path.line) } }
                    td { @match &path.updater {
                        Some(updater) => { (updater) @if path.left { " (left as it is)" } }
                        None => span.badge.bad { "none" }
                    } }
                    td { (path.objects.len()) }
                } } }
            } }
        }
    }
}

fn turns(group: &GroupPrediction, timeline: &Timeline) -> Markup {
    let all = waves(timeline);
    let assumed = timeline.takes.source != Source::History;
    html! {
        h3 { "Timeline" }
        p.facts {
            @if let Some(seconds) = group.seconds { span { "~" (duration(seconds)) } }
            span.assumed[assumed] { (takes(timeline)) }
            span { "at least " (timeline.availability.least) " available" }
        }
        @if all.len() <= chart::MOST_BARS {
            (chart::bars(&bars(timeline, &all)))
        } @else {
            (chart::progress(timeline))
        }
        (chart::availability(timeline))
        (table(timeline))
    }
}

/// A bar for each machine, or for each wave if there are too many.
fn bars(timeline: &Timeline, waves: &[Wave<'_>]) -> Vec<chart::Row> {
    let is_one_each = timeline.turns.len() <= chart::MOST_BARS;
    let row = |wave: &Wave<'_>, label: String, prepare: i64| chart::Row {
        label,
        class: word(wave.action),
        prepare,
        start: wave.start,
        end: wave.end,
    };
    waves
        .iter()
        .flat_map(|wave| {
            let first =
                wave.turns.iter().map(|turn| turn.start_seconds).min().unwrap_or(wave.start);
            if !is_one_each {
                return vec![row(wave, wave.machines(), first)];
            }
            let of = |machine: Option<&str>| machine.unwrap_or("a new machine").to_owned();
            let turns = wave.turns.iter();
            turns.map(|turn| row(wave, of(turn.machine.as_deref()), turn.start_seconds)).collect()
        })
        .collect()
}

fn table(timeline: &Timeline) -> Markup {
    let count = timeline.turns.len();
    let time = |seconds: i64| format!("+{}", duration(seconds));
    html! {
        details {
            summary { "All " (count) " turns" }
            @if count > MOST_ROWS { p { "The first " (MOST_ROWS) " are listed; -o json has all of them." } }
            div.scrolls { table {
                thead { tr { th { "Machine" } th { "Action" } th { "Prepares" } th { "Disturbed" } th { "Back" } } }
                tbody { @for turn in timeline.turns.iter().take(MOST_ROWS) { tr {
                    td { (turn.machine.as_deref().unwrap_or("a new machine")) }
                    td { (word(turn.action)) }
                    td { (time(turn.start_seconds)) }
                    td { (time(turn.disturbed_seconds)) }
                    td { (time(turn.end_seconds)) }
                } } }
            } }
        }
    }
}

fn list(lines: &[String]) -> Markup {
    html! { ul { @for line in lines { li { (line) } } } }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plan_of_example, *};

    #[test]
    fn the_page_refers_to_nothing_else() {
        let page = page(&plan_of_example("v1.34.2", "v1.35.0"));
        for forbidden in ["http:", "https:", "<script", "src=", "url(", "@import", "<link"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        for wanted in ["edge-1-0", "in place", "prefers-color-scheme", "Timeline", "(kubeadm)"] {
            assert!(page.contains(wanted), "{wanted}");
        }
    }

    #[test]
    fn text_of_objects_is_never_markup() {
        let mut plan = plan_of_example("v1.34.2", "v1.35.0");
        plan.groups[0].notes.push("<script>alert(1)</script>".to_owned());
        plan.groups[0].name = "a\"><img>".to_owned();
        let page = page(&plan);
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
        assert!(!page.contains("<script") && !page.contains("<img"));
    }

    #[test]
    fn many_waves_are_drawn_as_progress() {
        let mut plan = plan_of_example("v1.34.2", "v1.35.0");
        let timeline = plan.groups[0].timeline.as_mut().unwrap();
        let first = timeline.turns[0].clone();
        timeline.turns = (0..500)
            .map(|index| refit_predict::timeline::Turn {
                disturbed_seconds: index * 60,
                end_seconds: index * 60 + 60,
                ..first.clone()
            })
            .collect();
        let page = page(&plan);
        assert!(page.contains("<svg"));
        assert!(page.contains("All 500 turns"));
    }
}
