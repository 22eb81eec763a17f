//! A flame graph, as an SVG without scripts. Each function is a box under its caller, as wide as its time.
//! The pointer shows a box's name and share.
//!
//! `inferno` does the same, but `deny.toml` does not allow its licence (CDDL-1.0).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::part::Part;
use super::samples::{Frame, Sample};

const WIDTH: f64 = 1600.0;
const ROW: f64 = 16.0;
/// The width below which a box is not drawn.
const NARROWEST: f64 = 0.5;
/// The width of a letter.
const LETTER: f64 = 6.6;

/// A function at one place of the tree, with its callees.
#[derive(Default)]
struct Node<'a> {
    samples: usize,
    part: Option<Part>,
    callees: BTreeMap<&'a str, Node<'a>>,
}

impl<'a> Node<'a> {
    fn add(&mut self, frames: &'a [Frame]) {
        self.samples += 1;
        if let [first, rest @ ..] = frames {
            let callee = self.callees.entry(&first.function).or_default();
            callee.part = Part::of_frame(first);
            callee.add(rest);
        }
    }

    fn depth(&self) -> usize {
        self.callees
            .values()
            .map(|callee| callee.depth() + 1)
            .max()
            .unwrap_or(0)
    }
}

/// Draws the samples.
#[allow(clippy::cast_precision_loss)] // pixels
pub fn draw(samples: &[Sample]) -> String {
    let mut root = Node::default();
    for sample in samples {
        root.add(&sample.frames);
    }
    let height = (root.depth() + 1) as f64 * ROW;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"monospace\" font-size=\"11\">\n"
    );
    let scale = WIDTH / root.samples.max(1) as f64;
    draw_node(&mut svg, &root, "all", (0.0, height - ROW), (scale, root.samples));
    svg.push_str("</svg>\n");
    svg
}

#[allow(clippy::cast_precision_loss)] // pixels
fn draw_node(svg: &mut String, node: &Node<'_>, name: &str, (x, y): (f64, f64), (scale, all): (f64, usize)) {
    let width = node.samples as f64 * scale;
    if width < NARROWEST {
        return;
    }
    let share = node.samples as f64 * 100.0 / all.max(1) as f64;
    let colour = node.part.unwrap_or(Part::Other).colour();
    let title = escaped(name);
    // Writing to a String does not fail.
    let _ = writeln!(
        svg,
        "<g><title>{title}: {share:.2} %</title><rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" \
         height=\"{ROW}\" fill=\"{colour}\" stroke=\"#fff\" stroke-width=\"0.5\"/>{}</g>",
        label(name, width, (x, y))
    );
    let mut left = x;
    for (name, callee) in &node.callees {
        draw_node(svg, callee, name, (left, y - ROW), (scale, all));
        left += callee.samples as f64 * scale;
    }
}

/// Returns a box's label: as much of the name as fits.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // letters
fn label(name: &str, width: f64, (x, y): (f64, f64)) -> String {
    let fits = (width / LETTER) as usize;
    if fits < 4 {
        return String::new();
    }
    let shown: String = name.chars().take(fits - 1).collect();
    format!(
        "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        x + 2.0,
        y + ROW - 4.0,
        escaped(&shown)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::samples::parse;

    #[test]
    fn a_box_is_as_wide_as_its_share_and_stands_on_its_caller() {
        let svg = draw(&parse(
            "a 1 1.0:\n\t1 Vec<u8>::push (/b)\n\t2 main (/b)\n\na 1 1.1:\n\t1 sleep (/b)\n\t2 main (/b)\n\n",
        ));
        let line = |name: &str| {
            let line = svg.lines().find(|line| line.contains(&format!("<title>{name}:")));
            line.unwrap_or_else(|| panic!("no {name} in {svg}")).to_owned()
        };
        assert!(line("main").contains("100.00 %") && line("main").contains("y=\"16\""));
        let push = line("Vec&lt;u8&gt;::push");
        assert!(
            push.contains("50.00 %") && push.contains("width=\"800.0\""),
            "{push}"
        );
        assert!(push.contains("y=\"0\""), "{push}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
