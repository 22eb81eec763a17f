//! A wire between the driver and the libvirtd of a host. A test sees every message of libvirt's protocol on
//! it. The test may delay or drop a message, or answer instead of libvirtd.
//!
//! Framing and numbers follow `virnetprotocol.x` and `remote_protocol.x` of libvirt.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// libvirt's program number for calls about domains, volumes and everything else.
const REMOTE: u32 = 0x2000_8086;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const STREAM: u32 = 3;
const FAILED: u32 = 1;
/// Length and header of a message.
const HEADER: usize = 28;
/// Longer than any libvirt message.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;
/// The domain and level of an error in libvirtd itself.
const FROM_RPC: u32 = 7;
const ERROR: u32 = 2;

/// How often the wire checks whether a message must still wait.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The calls that tests need to distinguish.
pub mod procedure {
    /// `virDomainCreate`: starts a defined domain.
    pub const START: [u32; 2] = [9, 196];
    /// `virDomainDefineXML`.
    pub const DEFINE: [u32; 2] = [11, 350];
    /// `virDomainDestroy`.
    pub const DESTROY: [u32; 2] = [12, 234];
    /// `virStoragePoolRefresh`.
    pub const REFRESH: [u32; 1] = [83];
    /// `virStorageVolCreateXML`.
    pub const MAKE_VOLUME: [u32; 1] = [93];
    /// `virStorageVolDelete`.
    pub const DELETE_VOLUME: [u32; 1] = [94];
    /// `virStorageVolUpload`.
    pub const UPLOAD: [u32; 1] = [208];
    /// `virDomainUndefine`.
    pub const UNDEFINE: [u32; 2] = [35, 231];
    /// `virDomainLookupByUUID`.
    pub const LOOK_UP: [u32; 1] = [24];
    /// `virConnectListAllStoragePools`.
    pub const LIST_POOLS: [u32; 1] = [281];
    /// `virDomainSetMetadata`.
    pub const NOTE: [u32; 1] = [264];
    /// The calls that open and close a connection. All others concern objects on the host.
    pub const CONNECTING: [u32; 6] = [1, 2, 60, 66, 110, 167];
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A call from the driver.
    There,
    /// The answer to a call.
    Back,
    /// A part of an upload from the driver.
    Upload,
}

/// A message on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Where it is.
    pub way: Way,
    /// The number of the called procedure.
    pub procedure: u32,
    /// The arguments of the call.
    pub arguments: &'a [u8],
}

impl Message<'_> {
    /// Whether the message has this kind, belongs to one of these calls, and has a word in its arguments.
    pub fn is(&self, way: Way, procedures: &[u32], word: &str) -> bool {
        let has_word = word.is_empty() || self.arguments.windows(word.len()).any(|at| at == word.as_bytes());
        self.way == way && procedures.contains(&self.procedure) && has_word
    }
}

/// The fate of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The message arrives.
    Passes,
    /// The message is delayed by this time, and so are the later ones on the connection. A call waits only
    /// while this remains its fate.
    Late(Duration),
    /// The message is lost with the connection.
    Lost,
    /// The call is not made: libvirtd's answer is this error.
    Refused(u32, String),
}

/// Decides the fate of each message.
pub type Fates = Arc<dyn Fn(Message<'_>) -> Fate + Send + Sync>;

/// Lays a wire to a libvirtd socket, and serves it at the other end. The wire lives as long as the process.
pub fn lay(daemon: PathBuf, end: &Path, fates: Fates) -> Result<()> {
    let folder = end.parent().context("a socket is in a folder")?;
    fs::create_dir_all(folder)?;
    let listener = UnixListener::bind(end).with_context(|| format!("listening at {}", end.display()))?;
    thread::spawn(move || {
        for driver in listener.incoming().flatten() {
            // Closes the driver's connection if the daemon is down.
            if let Ok(libvirtd) = UnixStream::connect(&daemon)
                && let Err(error) = connect(&driver, &libvirtd, &fates)
            {
                eprintln!("a wire could not be laid: {error}");
            }
        }
    });
    Ok(())
}

/// One connection on the wire.
struct Line {
    driver: UnixStream,
    libvirtd: UnixStream,
    /// Two threads write answers.
    to_driver: Mutex<UnixStream>,
    /// Calls without an answer yet, by their serial numbers.
    calls: Mutex<HashMap<u32, (u32, Vec<u8>)>>,
    fates: Fates,
}

fn connect(driver: &UnixStream, libvirtd: &UnixStream, fates: &Fates) -> io::Result<()> {
    let line = Arc::new(Line {
        driver: driver.try_clone()?,
        libvirtd: libvirtd.try_clone()?,
        to_driver: Mutex::new(driver.try_clone()?),
        calls: Mutex::default(),
        fates: Arc::clone(fates),
    });
    let back = Arc::clone(&line);
    // The threads end when a connection breaks.
    thread::spawn(move || {
        let _ended = line.there();
        line.hang_up();
    });
    thread::spawn(move || {
        let _ended = back.back();
        back.hang_up();
    });
    Ok(())
}

impl Line {
    fn hang_up(&self) {
        for end in [&self.driver, &self.libvirtd] {
            // The socket may be closed already.
            let _closed = end.shutdown(Shutdown::Both);
        }
    }

    fn there(&self) -> io::Result<()> {
        let (mut from, mut to) = (&self.driver, &self.libvirtd);
        loop {
            let frame = Frame::read(&mut from)?;
            match self.fate_there(&frame) {
                Fate::Passes => {}
                Fate::Late(time) => self.hold_up(&frame, time),
                Fate::Lost => return Ok(()),
                Fate::Refused(number, words) => {
                    self.answer(&frame.refusal(number, &words))?;
                    continue;
                }
            }
            to.write_all(&frame.0)?;
        }
    }

    /// Waits for this time, or until the call's fate changes.
    fn hold_up(&self, frame: &Frame, time: Duration) {
        let since = Instant::now();
        while since.elapsed() < time && matches!(self.fate_there(frame), Fate::Late(_)) {
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    fn fate_there(&self, frame: &Frame) -> Fate {
        if frame.number(4) != REMOTE {
            return Fate::Passes;
        }
        let way = match frame.kind() {
            CALL => Way::There,
            STREAM => Way::Upload,
            _ => return Fate::Passes,
        };
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if way == Way::There {
            calls.insert(frame.serial(), (frame.procedure(), frame.0[HEADER..].to_vec()));
        }
        drop(calls);
        (self.fates)(Message {
            way,
            procedure: frame.procedure(),
            arguments: &frame.0[HEADER..],
        })
    }

    fn back(&self) -> io::Result<()> {
        let mut from = &self.libvirtd;
        loop {
            let frame = Frame::read(&mut from)?;
            let is_answer = frame.number(4) == REMOTE && frame.kind() == REPLY;
            let call = is_answer.then(|| {
                let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
                calls.remove(&frame.serial())
            });
            let fate = call.flatten().map(|(procedure, arguments)| {
                (self.fates)(Message {
                    way: Way::Back,
                    procedure,
                    arguments: &arguments,
                })
            });
            match fate {
                Some(Fate::Lost) => return Ok(()),
                Some(Fate::Late(time)) => thread::sleep(time),
                Some(Fate::Passes | Fate::Refused(..)) | None => {}
            }
            self.answer(&frame.0)?;
        }
    }

    fn answer(&self, bytes: &[u8]) -> io::Result<()> {
        let mut driver = self.to_driver.lock().unwrap_or_else(PoisonError::into_inner);
        driver.write_all(bytes)
    }
}

/// A message on the wire: length, program, version, procedure, kind, serial number, status and body.
struct Frame(Vec<u8>);

impl Frame {
    fn read(from: &mut impl io::Read) -> io::Result<Self> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let size = usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?;
        if !(HEADER..MAX_MESSAGE).contains(&size) {
            return Err(io::Error::other(format!("a message of {size} bytes")));
        }
        let mut bytes = length.to_vec();
        from.take((size - 4) as u64).read_to_end(&mut bytes)?;
        if bytes.len() < size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self(bytes))
    }

    fn number(&self, at: usize) -> u32 {
        self.0[at..at + 4]
            .iter()
            .fold(0, |number, byte| number << 8 | u32::from(*byte))
    }

    fn procedure(&self) -> u32 {
        self.number(12)
    }

    fn kind(&self) -> u32 {
        self.number(16)
    }

    fn serial(&self) -> u32 {
        self.number(20)
    }

    /// libvirtd's answer for a failed call.
    fn refusal(&self, number: u32, words: &str) -> Vec<u8> {
        let mut error = Vec::new();
        let mut put = |number: u32| error.extend(number.to_be_bytes());
        put(number);
        put(FROM_RPC);
        put(1);
        put(u32::try_from(words.len()).unwrap_or_default());
        error.extend(words.as_bytes());
        error.resize(error.len().next_multiple_of(4), 0);
        error.extend(ERROR.to_be_bytes());
        // Empty fields: no domain, texts, numbers or network.
        error.extend([0; 4 * 7]);
        let mut frame = u32::try_from(HEADER + error.len())
            .unwrap_or_default()
            .to_be_bytes()
            .to_vec();
        frame.extend(&self.0[4..16]);
        frame.extend(REPLY.to_be_bytes());
        frame.extend(&self.0[20..24]);
        frame.extend(FAILED.to_be_bytes());
        frame.extend(error);
        frame
    }
}
