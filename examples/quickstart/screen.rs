//! The output: a live table in a terminal, otherwise a line for each change.

use std::io::{IsTerminal as _, Write, stdout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossterm::style::{Print, Stylize as _};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
    EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{cursor, execute, queue, terminal};

use crate::fleet::Row;
use crate::table;

/// How often the table is painted, and so how long a resized window looks wrong.
const FRAME: Duration = Duration::from_millis(120);
const SPINNER: [&str; 4] = ["|", "/", "-", "\\"];
/// Columns of the table if the output is not a terminal.
const PLAIN_WIDTH: usize = 200;

/// The output of the quickstart.
pub struct Screen {
    terminal: bool,
    started: Instant,
    state: Arc<Mutex<State>>,
    painter: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    /// Whether the live table occupies the terminal.
    open: bool,
    colour: bool,
    doing: String,
    rows: Vec<Row>,
    note: Vec<String>,
}

impl Screen {
    /// The output is live in a terminal that can move its cursor.
    pub fn new(plain: bool) -> Self {
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            terminal: !plain && !dumb && stdout().is_terminal(),
            started: Instant::now(),
            state: Arc::new(Mutex::new(State {
                colour,
                ..State::default()
            })),
            painter: Mutex::new(None),
        }
    }

    /// Whether the output is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Reports the current step.
    pub fn doing(&self, what: &str) {
        let mut state = lock(&self.state);
        what.clone_into(&mut state.doing);
        if !state.open {
            self.say(what);
        }
    }

    /// Shows the machines.
    pub fn show(&self, rows: Vec<Row>) {
        let mut state = lock(&self.state);
        if !self.terminal {
            for row in &rows {
                let before = state.rows.iter().find(|before| before.machine == row.machine);
                if let Some(news) = news(before.unwrap_or(&Row::default()), row) {
                    self.say(&news);
                }
            }
            for gone in state
                .rows
                .iter()
                .filter(|row| rows.iter().all(|now| now.machine != row.machine))
            {
                self.say(&format!("{}: gone", gone.machine));
            }
        }
        state.rows = rows;
    }

    /// Shows these lines below the table.
    pub fn note(&self, lines: &[String]) {
        lock(&self.state).note = lines.to_vec();
    }

    /// Shows the live table in the terminal.
    pub fn open(&self) {
        if !self.terminal {
            return;
        }
        lock(&self.state).open = true;
        // A failure to write to the terminal does not matter for the machines.
        let _ = execute!(stdout(), EnterAlternateScreen, cursor::Hide, DisableLineWrap);
        let state = Arc::clone(&self.state);
        let painter = thread::spawn(move || {
            for frame in 0.. {
                if !paint(&state, SPINNER[frame % SPINNER.len()]) {
                    return;
                }
                thread::sleep(FRAME);
            }
        });
        *lock(&self.painter) = Some(painter);
    }

    /// Restores the terminal, and prints the last table.
    pub fn close(&self) {
        let was_open = std::mem::take(&mut lock(&self.state).open);
        if let Some(painter) = lock(&self.painter).take() {
            let _ = painter.join();
        }
        if was_open {
            let _ = execute!(stdout(), EnableLineWrap, cursor::Show, LeaveAlternateScreen);
        }
        let mut state = lock(&self.state);
        let width = if was_open { size().0 } else { PLAIN_WIDTH };
        let rows = std::mem::take(&mut state.rows);
        if !rows.is_empty() {
            let table = table::lines(&rows, width, was_open && state.colour).join("\n");
            let _ = writeln!(stdout(), "{table}");
        }
    }

    /// Prints a line, with the time since the start.
    pub fn say(&self, line: &str) {
        let _ = writeln!(
            stdout(),
            "[{:5.1} s] {line}",
            self.started.elapsed().as_secs_f64()
        );
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn size() -> (usize, usize) {
    // A terminal with an unknown size returns an error or zero.
    let (width, height) = terminal::size().unwrap_or_default();
    let or = |value: u16, default: usize| if value == 0 { default } else { value.into() };
    (or(width, 80), or(height, 24))
}

/// Paints a frame. Returns `false` when the table is closed.
fn paint(state: &Mutex<State>, spinner: &str) -> bool {
    let (width, height) = size();
    let lines = {
        let state = lock(state);
        if !state.open {
            return false;
        }
        frame(&state, spinner, width, height)
    };
    let draw = || -> std::io::Result<()> {
        let mut out = stdout().lock();
        queue!(out, BeginSynchronizedUpdate)?;
        for (row, line) in (0..).zip(&lines) {
            // Cleared first: after a full line, the cursor is still on the last character.
            queue!(
                out,
                cursor::MoveTo(0, row),
                Clear(ClearType::CurrentLine),
                Print(line)
            )?;
        }
        let below = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        if lines.len() < height {
            queue!(out, cursor::MoveTo(0, below), Clear(ClearType::FromCursorDown))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()
    };
    let _ = draw();
    true
}

/// The lines of a frame, limited to the size of the terminal.
fn frame(state: &State, spinner: &str, width: usize, height: usize) -> Vec<String> {
    let doing: String = format!("{spinner} {}", state.doing).chars().take(width).collect();
    let doing = if state.colour {
        doing.bold().to_string()
    } else {
        doing
    };
    let mut lines = vec![doing, String::new()];
    let table = table::lines(&state.rows, width, state.colour);
    let room = height.saturating_sub(lines.len()).max(1);
    if table.len() > room {
        let hidden = table.len() - room + 1;
        lines.extend(table.into_iter().take(room - 1));
        lines.push(format!("… and {hidden} more").chars().take(width).collect());
    } else {
        lines.extend(table);
    }
    if !state.note.is_empty() {
        lines.push(String::new());
        // Wrapped instead of cut, so that users can copy it.
        for line in &state.note {
            let characters: Vec<char> = line.chars().collect();
            lines.extend(characters.chunks(width.max(1)).map(|part| part.iter().collect()));
        }
    }
    lines.truncate(height);
    lines
}

/// The changes of a machine as text.
fn news(before: &Row, now: &Row) -> Option<String> {
    let changed: Vec<String> = fields(before)
        .into_iter()
        .zip(fields(now))
        .filter(|((_, before), (_, now))| before != now && !now.is_empty())
        .map(|(_, (name, now))| format!("{name} {now}").trim_start().to_owned())
        .collect();
    (!changed.is_empty()).then(|| format!("{}: {}", now.machine, changed.join(", ")))
}

fn fields(row: &Row) -> [(&'static str, &str); 6] {
    [
        ("", &row.phase),
        ("InfraMachine", &row.infra_machine),
        ("condition", &row.condition),
        ("providerID", &row.provider_id),
        ("address", &row.address),
        ("node", &row.node),
    ]
}
