use k8s_openapi::apimachinery::pkg::apis::meta::v1;
use proptest::prelude::*;

use super::*;

/// A zone in which clocks change, and the nights in which they do: when they skip an hour, and when they repeat one.
const ZONES: [(&str, &str, &str); 5] = [
    ("Europe/Berlin", "2026-03-29", "2026-10-25"),
    ("America/New_York", "2026-03-08", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-10-04", "2026-04-05"),
    ("America/Santiago", "2026-09-06", "2026-04-04"),
    ("Africa/Casablanca", "2026-03-22", "2026-02-15"),
];

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

fn window(days: &[Day], start: &str, duration_minutes: i32, zone: &str) -> WeeklyWindow {
    WeeklyWindow {
        name: None,
        days: days.to_vec(),
        start: start.into(),
        duration_minutes,
        time_zone: zone.into(),
        except: Vec::new(),
    }
}

fn windows(weekly: Vec<WeeklyWindow>, once: &[(&str, &str)]) -> Windows {
    let once = once.iter().map(|(from, until)| OneWindow {
        name: None,
        from: v1::Time(at(from)),
        until: v1::Time(at(until)),
    });
    Windows { weekly, once: once.collect(), estimate_seconds: 900 }
}

fn schedule(weekly: Vec<WeeklyWindow>, once: &[(&str, &str)]) -> Schedule {
    Schedule::of(&windows(weekly, once)).unwrap()
}

const EVERY_DAY: [Day; 7] = [
    Day::Monday,
    Day::Tuesday,
    Day::Wednesday,
    Day::Thursday,
    Day::Friday,
    Day::Saturday,
    Day::Sunday,
];

#[test]
fn a_weekly_window_opens_on_its_days_at_the_time_of_its_zone() {
    let night = window(&[Day::Saturday], "22:30", 120, "Europe/Berlin");
    let open = schedule(vec![night], &[]);
    // Saturday 2026-11-28; Berlin is one hour ahead of UTC.
    assert_eq!(open.open_at(at("2026-11-28T21:29:59Z")), None);
    let span = open.open_at(at("2026-11-28T21:30:00Z")).unwrap();
    assert_eq!((span.from, span.until), (at("2026-11-28T21:30:00Z"), at("2026-11-28T23:30:00Z")));
    assert_eq!(open.open_at(at("2026-11-28T23:30:00Z")), None, "the end is closed");
    let next = open.next_for(minutes(1), at("2026-11-28T23:30:00Z"));
    assert_eq!(next, Some(at("2026-12-05T21:30:00Z")));
}

#[test]
fn the_next_open_time_is_the_present_one_or_a_later_one() {
    let open = schedule(vec![window(&[Day::Saturday], "22:30", 120, "Europe/Berlin")], &[]);
    let span = open.next_open(at("2026-11-25T00:00:00Z")).unwrap();
    assert_eq!((span.from, span.until), (at("2026-11-28T21:30:00Z"), at("2026-11-28T23:30:00Z")));
    assert_eq!(open.next_open(at("2026-11-28T22:00:00Z")), Some(span));
    assert!(schedule(vec![], &[]).next_open(at("2026-11-28T22:00:00Z")).is_none());
}

#[test]
fn work_begins_only_where_it_fits() {
    let short = window(&[Day::Monday], "02:00", 30, "UTC");
    let long = window(&[Day::Thursday], "02:00", 120, "UTC");
    let open = schedule(vec![short, long], &[]);
    let monday = at("2026-11-30T02:10:00Z");
    assert_eq!(open.next_for(minutes(20), monday), Some(monday), "20 minutes are left");
    assert_eq!(open.next_for(minutes(21), monday), Some(at("2026-12-03T02:00:00Z")));
    assert_eq!(open.next_for(minutes(121), monday), None, "no window is that long");
}

#[test]
fn windows_that_follow_one_another_are_one() {
    let once = [
        ("2026-11-30T02:00:00Z", "2026-11-30T03:00:00Z"),
        ("2026-11-30T03:00:00Z", "2026-11-30T04:00:00Z"),
        ("2026-11-30T05:00:00Z", "2026-11-30T06:00:00Z"),
    ];
    let open = schedule(vec![window(&[Day::Monday], "03:30", 60, "UTC")], &once);
    let span = open.open_at(at("2026-11-30T02:30:00Z")).unwrap();
    assert_eq!(span.until, at("2026-11-30T04:30:00Z"));
    assert_eq!(open.next_for(minutes(150), at("2026-11-30T01:00:00Z")), Some(span.from));
    let all_week = schedule(vec![window(&EVERY_DAY, "00:00", 1440, "UTC")], &[]);
    assert!(all_week.next_for(minutes(5 * 1440), at("2026-11-30T12:00:00Z")).is_some());
}

#[test]
fn a_date_that_is_left_out_is_closed_for_the_whole_day() {
    let mut night = window(&[Day::Wednesday, Day::Thursday], "22:00", 240, "Europe/Berlin");
    night.except = vec!["2026-12-24".into(), "2026-12-31".into()];
    let open = schedule(vec![night], &[]);
    // The window of Wednesday closes at midnight, and that of Thursday opens after midnight only.
    let wednesday = open.open_at(at("2026-12-23T21:30:00Z")).unwrap();
    assert_eq!(wednesday.until, at("2026-12-23T23:00:00Z"));
    let next = open.next_for(minutes(10), wednesday.until);
    assert_eq!(next, Some(at("2026-12-24T23:00:00Z")));
    assert_eq!(open.open_at(next.unwrap()).unwrap().until, at("2026-12-25T01:00:00Z"));
}

#[test]
fn a_window_that_is_left_out_for_a_year_is_found_after_it() {
    let mut rare = window(&[Day::Friday], "12:00", 60, "UTC");
    let fridays = at("2026-01-02T00:00:00Z").to_zoned(TimeZone::UTC).date().series(7.days());
    rare.except = fridays.take(52).map(|date| date.to_string()).collect();
    let open = schedule(vec![rare], &[]);
    let next = open.next_for(minutes(60), at("2026-01-01T00:00:00Z"));
    assert_eq!(next, Some(at("2027-01-01T12:00:00Z")));
}

#[test]
fn a_distant_window_does_not_hide_one_that_is_left_out_for_some_weeks() {
    let mut rare = window(&[Day::Friday], "12:00", 60, "UTC");
    rare.except = ["2026-01-02", "2026-01-09", "2026-01-16"].map(str::to_owned).into();
    let open = schedule(vec![rare], &[("2026-03-01T00:00:00Z", "2026-03-01T04:00:00Z")]);
    let next = open.next_for(minutes(60), at("2026-01-01T00:00:00Z"));
    assert_eq!(next, Some(at("2026-01-23T12:00:00Z")));
}

#[test]
fn bad_windows_are_named_with_field_value_and_what_is_wanted() {
    let good = || window(&[Day::Monday], "02:00", 30, "UTC");
    let cases = [
        (WeeklyWindow { time_zone: "Europe/Bern1".into(), ..good() }, "weekly[1].timeZone"),
        (WeeklyWindow { start: "24:00".into(), ..good() }, "weekly[1].start"),
        (WeeklyWindow { duration_minutes: 0, ..good() }, "weekly[1].durationMinutes"),
        (WeeklyWindow { except: vec!["2026-02-30".into()], ..good() }, "weekly[1].except[0]"),
    ];
    for (bad, field) in cases {
        let error = Schedule::of(&windows(vec![good(), bad], &[])).unwrap_err();
        assert_eq!(error.field, field);
        assert!(error.to_string().contains(&format!("in spec.pacing.windows.{field}")), "{error}");
    }
    let once = [("2026-11-30T03:00:00Z", "2026-11-30T03:00:00Z")];
    let error = Schedule::of(&windows(Vec::new(), &once)).unwrap_err();
    assert_eq!(error.field, "once[0].until");
}

/// A window that opens at a time that is skipped
/// opens an hour, or half an hour, later; one that opens at a time that is repeated opens the first time; both last as
/// long as always.
#[test]
fn windows_last_as_long_as_always_when_clocks_change() {
    for (zone, skips, repeats) in ZONES {
        let tz = zones().get(zone).unwrap();
        for date in [skips, repeats] {
            let date: Date = date.parse().unwrap();
            let day = |date: Date| date.to_zoned(tz.clone()).unwrap().timestamp();
            let hours = day(date.tomorrow().unwrap()).duration_since(day(date));
            assert_ne!(hours, SignedDuration::from_hours(24), "clocks change in {zone} on {date}");
            for start in ["00:00", "01:30", "02:00", "02:30", "03:00"] {
                let open = schedule(vec![window(&EVERY_DAY, start, 45, zone)], &[]);
                let opens = open.next_for(minutes(45), day(date)).unwrap();
                let wall = opens.to_zoned(tz.clone());
                let time = wall.strftime("%H:%M").to_string();
                assert_eq!(wall.date(), date, "{zone} {start}");
                assert!(*time >= *start, "{zone}: {start} opens at {time}");
                let span = open.open_at(opens).unwrap();
                assert_eq!(span.until.duration_since(span.from), minutes(45), "{zone} {start}");
            }
        }
    }
}

fn any_window() -> impl Strategy<Value = WeeklyWindow> {
    let days = proptest::sample::subsequence(EVERY_DAY.to_vec(), 1..=7);
    let dates = proptest::collection::vec(0..370_i64, 0..5);
    let start = (0..24_u32, 0..60_u32);
    (days, start, 1..=10_080_i32, 0..ZONES.len(), dates).prop_map(
        |(days, (hour, minute), duration_minutes, zone, dates)| WeeklyWindow {
            name: None,
            days,
            start: format!("{hour:02}:{minute:02}"),
            duration_minutes,
            time_zone: ZONES[zone].0.into(),
            except: dates
                .into_iter()
                .map(|day| (jiff::civil::date(2026, 1, 1) + day.days()).to_string())
                .collect(),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the windows are: work begins while they are open, ends before they close, never on a date that is left
    /// out, and at once wherever it fits.
    #[test]
    fn work_is_always_within_a_window(
        weekly in proptest::collection::vec(any_window(), 1..4),
        now in 1_767_225_600_i64..1_798_761_600,
        needs in 1_i64..20_000,
    ) {
        let (now, needs) = (Timestamp::from_second(now).unwrap(), minutes(needs));
        let open = schedule(weekly.clone(), &[]);
        if let Some(begin) = open.next_for(needs, now) {
            prop_assert!(begin >= now);
            let span = open.open_at(begin).unwrap();
            prop_assert!(span.from <= begin && begin.checked_add(needs).unwrap() <= span.until);
            let is_closed = |window: &WeeklyWindow| {
                let zone = zones().get(&window.time_zone).unwrap();
                window.except.contains(&begin.to_zoned(zone).date().to_string())
            };
            prop_assert!(!weekly.iter().all(is_closed));
            // One that is a moment shorter begins no later.
            prop_assert!(open.next_for(needs - minutes(1), now).unwrap() <= begin);
        }
        if let Some(span) = open.open_at(now) {
            let fits = span.until.duration_since(now) >= needs;
            prop_assert_eq!(open.next_for(needs, now) == Some(now), fits);
        }
    }
}
