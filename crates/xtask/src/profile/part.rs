//! The parts of the provider that take CPU time.

use super::samples::{Frame, Sample};

/// A part, identified by the names of its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Allocator,
    Json,
    Tls,
    Http,
    Grpc,
    Caches,
    SimulatedCloud,
    Reconciles,
    Runtime,
    Kernel,
    Other,
}

/// Prefixes of words in the names of a part's functions. If several parts match, the first one counts.
const NAMES: &[(Part, &[&str])] = &[
    (
        Part::Allocator,
        &[
            "_rjem_",
            "je_",
            "jemalloc",
            "malloc",
            "tcache",
            "arena_",
            "__rust_alloc",
            "__rust_dealloc",
            "__rust_realloc",
        ],
    ),
    (
        Part::Json,
        &[
            "serde_json",
            "serde::",
            "serde_core",
            "Deserialize",
            "Serialize",
            "json_patch",
            "itoa",
            "ryu",
        ],
    ),
    (
        Part::Tls,
        &["rustls", "ring::", "ring_core", "aes_", "gcm_", "chacha"],
    ),
    (Part::Grpc, &["tonic", "prost", "cmi_grpc"]),
    (
        Part::Http,
        &[
            "hyper",
            "h2::",
            "httparse",
            "http::",
            "http_body",
            "tower",
            "kube_client",
        ],
    ),
    (Part::SimulatedCloud, &["cmi_simulated"]),
    (
        Part::Caches,
        &[
            "kube_runtime",
            "kube_core",
            "k8s_openapi",
            "capcmi::manager::controllers",
            "capcmi::reconcile::caches",
            "kube_fleet",
        ],
    ),
    (
        Part::Reconciles,
        &["capcmi", "cmi_driver", "jiff", "tracing", "prometheus"],
    ),
    (Part::Runtime, &["tokio", "futures", "mio::"]),
];

impl Part {
    /// Returns the part of the innermost function with a known part. The kernel's functions belong to the
    /// kernel, regardless of their caller.
    pub fn of(sample: &Sample) -> Self {
        if sample.frames.last().is_some_and(|frame| frame.is_kernel) {
            return Self::Kernel;
        }
        let mut inside_out = sample.frames.iter().rev();
        inside_out.find_map(Self::of_frame).unwrap_or(Self::Other)
    }

    /// Returns the part of a function, if it is known.
    pub fn of_frame(frame: &Frame) -> Option<Self> {
        if frame.is_kernel {
            return Some(Self::Kernel);
        }
        let is_named = |names: &[&str]| names.iter().any(|name| has_word(&frame.function, name));
        NAMES
            .iter()
            .find(|(_, names)| is_named(names))
            .map(|(part, _)| *part)
    }

    /// Returns the name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocator => "allocator",
            Self::Json => "JSON",
            Self::Tls => "TLS",
            Self::Http => "HTTP",
            Self::Grpc => "gRPC",
            Self::Caches => "watches and caches",
            Self::SimulatedCloud => "simulated cloud",
            Self::Reconciles => "reconciles",
            Self::Runtime => "async runtime",
            Self::Kernel => "kernel",
            Self::Other => "other",
        }
    }

    /// Returns the colour in the flame graph.
    pub const fn colour(self) -> &'static str {
        match self {
            Self::Allocator => "#e8b04a",
            Self::Json => "#d9663b",
            Self::Tls => "#9a7fc7",
            Self::Http => "#6f9fd8",
            Self::Grpc => "#4fb3bf",
            Self::Caches => "#7fb86b",
            Self::SimulatedCloud => "#c2c2c2",
            Self::Reconciles => "#d95f79",
            Self::Runtime => "#c9b99a",
            Self::Kernel => "#8d8d8d",
            Self::Other => "#dedede",
        }
    }
}

/// Whether a word of the function's name has this prefix: `ring::` does not match `string::`.
fn has_word(function: &str, beginning: &str) -> bool {
    function.match_indices(beginning).any(|(at, _)| {
        let before = function[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && before != '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(frames: &[(&str, bool)]) -> Sample {
        let frame = |&(function, is_kernel): &(&str, bool)| Frame {
            function: function.to_owned(),
            is_kernel,
        };
        Sample {
            frames: frames.iter().map(frame).collect(),
        }
    }

    #[test]
    fn a_sample_counts_for_its_innermost_known_function_or_the_kernel() {
        let reconcile = ("capcmi::machine::reconcile", false);
        for (frames, part) in [
            (vec![reconcile], Part::Reconciles),
            (vec![reconcile, ("serde_json::to_vec", false)], Part::Json),
            (
                vec![reconcile, ("serde_json::to_vec", false), ("__memmove_avx", false)],
                Part::Json,
            ),
            (
                vec![reconcile, ("writev", false), ("tcp_sendmsg", true)],
                Part::Kernel,
            ),
            (vec![("start_thread", false)], Part::Other),
        ] {
            assert_eq!(Part::of(&sample(&frames)), part, "{frames:?}");
        }
    }
}
