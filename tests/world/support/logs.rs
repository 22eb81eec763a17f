//! Log lines of the code under test.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::subscriber::DefaultGuard;

/// The warnings and errors of a case, whose tasks all run in the thread of the case.
pub struct Logs {
    text: Arc<Mutex<Vec<u8>>>,
    _guard: DefaultGuard,
}

impl Logs {
    /// Captures from now on, instead of showing.
    pub fn capture() -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let writer = Arc::clone(&text);
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(move || Writer(Arc::clone(&writer)))
            .finish();
        Self {
            text,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// All lines so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock()).into_owned()
    }
}

struct Writer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
