//! The samples that `perf script` prints.

/// The frames of one sample, from the start of the thread to the function that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The frames, outermost first.
    pub frames: Vec<Frame>,
}

/// A function on the stack of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The name, without the hash that the compiler appends.
    pub function: String,
    /// Whether the function belongs to the kernel.
    pub is_kernel: bool,
}

/// Reads all samples. Each has a line about the sample, a line for each frame, the innermost first, and an
/// empty line at the end.
pub fn parse(text: &str) -> Vec<Sample> {
    let samples = text.split("\n\n").filter_map(|block| {
        let mut frames: Vec<_> = block.lines().filter_map(frame).collect();
        frames.reverse();
        (!frames.is_empty()).then_some(Sample { frames })
    });
    samples.collect()
}

/// Reads a line such as `\t  55d5 name+0x1f (/path)`. The line about the sample is not indented.
fn frame(line: &str) -> Option<Frame> {
    let (_address, rest) = line.strip_prefix(['\t', ' '])?.trim_start().split_once(' ')?;
    let (name, object) = rest.rsplit_once(" (")?;
    let name = name.rsplit_once("+0x").map_or(name, |(name, _)| name);
    Some(Frame {
        function: without_hash(name).to_owned(),
        is_kernel: object.starts_with("[kernel") || object.starts_with("[guest.kernel"),
    })
}

/// Returns `name` for `name::h0123456789abcdef`.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((rest, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => rest,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_parsed_outermost_first_without_offsets_and_hashes() {
        let text = "tokio-rt-worker 42 12.5: \n\
            \tffffffff81 __schedule+0x1 ([kernel.kallsyms])\n\
            \t    55d5 capcmi::machine::reconcile::{{closure}}::h0123456789abcdef+0x1f (/opt/capcmi)\n\
            \t    0000 [unknown] ([unknown])\n\n";
        let frame = |function: &str, is_kernel| Frame {
            function: function.to_owned(),
            is_kernel,
        };
        let frames = vec![
            frame("[unknown]", false),
            frame("capcmi::machine::reconcile::{{closure}}", false),
            frame("__schedule", true),
        ];
        assert_eq!(parse(text), [Sample { frames }]);
    }

    #[test]
    fn what_is_no_sample_is_none() {
        assert!(parse("").is_empty());
        assert!(parse("tokio 42 12.5:\n\n").is_empty());
    }
}
