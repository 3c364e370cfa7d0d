//! When maintenance windows are open (`docs/pacing.md#windows`).
//!
//! Weekly windows are times of a clock on a wall: they follow the daylight saving time of their zone, and last as long
//! as they are set to, whatever that clock does meanwhile. Windows that overlap or follow one another without a gap are
//! one. The rules of time zones are part of the program, so that each host decides the same.

use std::sync::OnceLock;

use jiff::{
    SignedDuration, Timestamp, ToSpan as _,
    civil::{Date, Time, Weekday},
    tz::{TimeZone, TimeZoneDatabase},
};
use refit_kinds::refit::{Day, OneWindow, WeeklyWindow, Windows};

/// How far ahead windows are looked for, in days: first nearby, then as far as dates may leave out one that opens once a week.
const NEAR: i64 = 15;
const FAR: i64 = 710;
/// The longest weekly window, in days, and a day for the difference between zones.
const LONGEST: i64 = 8;

/// A window that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid value {value:?} in spec.pacing.windows.{field}, expected {want}")]
pub struct BadWindow {
    /// The field, from `windows` on.
    pub field: String,
    /// Its value.
    pub value: String,
    /// What it should be.
    pub want: &'static str,
}

/// A time during which windows are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenTime {
    /// When it begins.
    pub from: Timestamp,
    /// When it ends: the first moment at which it is closed.
    pub until: Timestamp,
}

impl OpenTime {
    /// Whether work that takes so long fits, if it begins at a time at the earliest; returns when it begins.
    fn fits(&self, needs: SignedDuration, now: Timestamp) -> Option<Timestamp> {
        let begin = self.from.max(now);
        (self.until.duration_since(begin) >= needs && begin < self.until).then_some(begin)
    }
}

/// Windows that have been read.
#[derive(Clone, Debug)]
pub struct Schedule {
    weekly: Vec<Weekly>,
    once: Vec<OpenTime>,
}

#[derive(Clone, Debug)]
struct Weekly {
    days: Vec<Weekday>,
    start: Time,
    lasts: SignedDuration,
    zone: TimeZone,
    /// The days on which it is closed.
    closed: Vec<OpenTime>,
}

impl Schedule {
    /// Reads windows.
    ///
    /// # Errors
    /// A time, a date or a time zone is invalid, or a window closes before it opens.
    pub fn of(windows: &Windows) -> Result<Self, BadWindow> {
        let weekly = windows.weekly.iter().enumerate().map(|(at, window)| weekly(at, window));
        let once = windows.once.iter().enumerate().map(|(at, window)| once(at, window));
        Ok(Self {
            weekly: weekly.collect::<Result<_, _>>()?,
            once: once.collect::<Result<_, _>>()?,
        })
    }

    /// The open time at this moment.
    pub fn open_at(&self, now: Timestamp) -> Option<OpenTime> {
        self.open_times(now, NEAR).into_iter().find(|open| open.from <= now && now < open.until)
    }

    /// The open time at this moment, else the next one; `None` if none is known.
    pub fn next_open(&self, now: Timestamp) -> Option<OpenTime> {
        self.open_at(self.next_for(SignedDuration::ZERO, now)?)
    }

    /// When work that takes so long may begin next, from now on; `None` if no window is known in which it fits.
    pub fn next_for(&self, needs: SignedDuration, now: Timestamp) -> Option<Timestamp> {
        [NEAR, FAR].into_iter().find_map(|days| {
            let begins =
                self.open_times(now, days).into_iter().find_map(|open| open.fits(needs, now))?;
            // Of what begins later, weekly windows are not known. Their zones differ from UTC by less than a day.
            let known_until = now.saturating_add(SignedDuration::from_hours(24 * (days - 1)));
            (days == FAR || known_until.is_ok_and(|until| begins < until)).then_some(begins)
        })
    }

    /// The open times that end after a time and begin within so many days of it, in order, without overlaps.
    fn open_times(&self, now: Timestamp, days: i64) -> Vec<OpenTime> {
        let mut all: Vec<OpenTime> =
            self.weekly.iter().flat_map(|window| window.open_times(now, days)).collect();
        all.extend(&self.once);
        all.retain(|open| open.until > now);
        all.sort_unstable();
        let mut merged: Vec<OpenTime> = Vec::new();
        for open in all {
            match merged.last_mut() {
                Some(last) if open.from <= last.until => last.until = last.until.max(open.until),
                Some(_) | None => merged.push(open),
            }
        }
        merged
    }
}

impl Weekly {
    fn open_times(&self, now: Timestamp, days: i64) -> Vec<OpenTime> {
        let today = now.to_zoned(self.zone.clone()).date();
        let first = today.saturating_sub(LONGEST.days());
        let last = today.saturating_add(days.days());
        let dates = first.series(1.day()).take_while(|date| *date <= last);
        let dates = dates.filter(|date| self.days.contains(&date.weekday()));
        dates
            .filter_map(|date| self.on(date))
            .flat_map(|open| self.without_closed_days(open))
            .collect()
    }

    /// The open time that begins on a date; `None` at the end of all time.
    fn on(&self, date: Date) -> Option<OpenTime> {
        let from = moment(&self.zone, date, self.start)?;
        Some(OpenTime { from, until: from.checked_add(self.lasts).ok()? })
    }

    /// What is left of an open time without the days on which the window is closed.
    fn without_closed_days(&self, open: OpenTime) -> Vec<OpenTime> {
        let mut left = vec![open];
        let meets = |day: &&OpenTime| day.from < open.until && open.from < day.until;
        for day in self.closed.iter().filter(meets) {
            let cut = |open: OpenTime| {
                let before = OpenTime { until: open.until.min(day.from), ..open };
                let after = OpenTime { from: open.from.max(day.until), ..open };
                [before, after].into_iter().filter(|part| part.from < part.until)
            };
            left = left.into_iter().flat_map(cut).collect();
        }
        left
    }
}

/// The moment of a date and time of a zone; `None` at the end of all time.
fn moment(zone: &TimeZone, date: Date, time: Time) -> Option<Timestamp> {
    let zoned = zone.to_ambiguous_zoned(date.to_datetime(time)).compatible().ok()?;
    Some(zoned.timestamp())
}

/// A date from midnight to midnight.
fn whole_day(zone: &TimeZone, date: Date) -> Option<OpenTime> {
    let from = moment(zone, date, Time::midnight())?;
    Some(OpenTime { from, until: moment(zone, date.tomorrow().ok()?, Time::midnight())? })
}

fn weekly(at: usize, window: &WeeklyWindow) -> Result<Weekly, BadWindow> {
    let WeeklyWindow { name: _, days, start, duration_minutes, time_zone, except } = window;
    let bad = |field: &str, value: &str, want| BadWindow {
        field: format!("weekly[{at}].{field}"),
        value: value.to_owned(),
        want,
    };
    let lasts = Some(*duration_minutes).filter(|minutes| (1..=10_080).contains(minutes));
    let lasts = lasts.ok_or_else(|| {
        bad("durationMinutes", &duration_minutes.to_string(), "1 to 10080 minutes")
    })?;
    let zone = zones()
        .get(time_zone)
        .map_err(|_| bad("timeZone", time_zone, "an IANA name such as Europe/Berlin"))?;
    let closed = |(day, text): (usize, &String)| {
        let date: Option<Date> = text.parse().ok();
        let wrong = || bad(&format!("except[{day}]"), text, "a date such as 2026-12-24");
        date.and_then(|date| whole_day(&zone, date)).ok_or_else(wrong)
    };
    let closed = except.iter().enumerate().map(closed).collect::<Result<_, _>>()?;
    Ok(Weekly {
        days: days.iter().map(|day| weekday(*day)).collect(),
        start: Time::strptime("%H:%M", start)
            .map_err(|_| bad("start", start, "a time such as 22:30"))?,
        lasts: SignedDuration::from_mins(lasts.into()),
        zone,
        closed,
    })
}

fn once(at: usize, window: &OneWindow) -> Result<OpenTime, BadWindow> {
    let OneWindow { name: _, from, until } = window;
    let (from, until) = (from.0, until.0);
    (from < until).then_some(OpenTime { from, until }).ok_or_else(|| BadWindow {
        field: format!("once[{at}].until"),
        value: until.to_string(),
        want: "a time after from",
    })
}

fn weekday(day: Day) -> Weekday {
    match day {
        Day::Monday => Weekday::Monday,
        Day::Tuesday => Weekday::Tuesday,
        Day::Wednesday => Weekday::Wednesday,
        Day::Thursday => Weekday::Thursday,
        Day::Friday => Weekday::Friday,
        Day::Saturday => Weekday::Saturday,
        Day::Sunday => Weekday::Sunday,
    }
}

fn zones() -> &'static TimeZoneDatabase {
    static ZONES: OnceLock<TimeZoneDatabase> = OnceLock::new();
    ZONES.get_or_init(TimeZoneDatabase::bundled)
}

#[cfg(test)]
mod tests;
