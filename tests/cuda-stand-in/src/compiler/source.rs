//! CUDA C++ as a program for a C++ compiler: text in, text out.

use std::fmt::Write as _;

use crate::driver::module::SHARED_BYTES_MAX;

/// What kernels take for granted.
const PRELUDE: &str =
    concat!(include_str!("prelude.hpp"), include_str!("warp.hpp"), include_str!("maths.hpp"));

/// What the headers of small floats bring.
const HALF: &str = include_str!("half.hpp");

/// Words that only kernels use whose threads wait for each other.
const WAITING: [&str; 5] =
    ["_sync(", "__syncthreads", "__syncwarp", "__activemask", "load_acquire("];

/// Headers of numbers of 16 bits, without which a kernel has types of its own with the same names.
const HALF_HEADERS: [&str; 2] = ["#include <cuda_fp16.h>", "#include <cuda_bf16.h>"];

/// A program for the C++ compiler.
pub(crate) fn translate(source: &str) -> String {
    let waits = WAITING.iter().any(|word| source.contains(word));
    let mut text = format!(
        "#define STAND_IN_WAITS {}\n#define STAND_IN_SHARED_BYTES {SHARED_BYTES_MAX}\n{PRELUDE}\n",
        u32::from(waits)
    );
    if HALF_HEADERS.iter().any(|header| source.contains(header)) {
        text.push_str(HALF);
    }
    for line in source.lines() {
        // The prelude has what these would bring.
        let is_header = line.trim_start().starts_with("#include <cuda_");
        if line.contains("extern __shared__") {
            let line = line.replace("extern __shared__", "__shared__");
            text.push_str(&line.replace("[]", "[STAND_IN_SHARED_BYTES]"));
        } else if let Some(line) = atomic(line) {
            text.push_str(&line);
        } else if !is_header {
            text.push_str(line);
        }
        text.push('\n');
    }
    for name in kernels(source) {
        let _ = writeln!(text, "STAND_IN_KERNEL({name})");
    }
    text
}

/// A function in place of the device's instruction that changes a word at once: CubeCL writes those itself, as
/// `asm volatile("atom.relaxed.add.f32 %0, [%1], %2;" : "=f"(result) : "l"(pointer), "f"(value) );`.
fn atomic(line: &str) -> Option<String> {
    let (before, rest) = line.split_once("asm volatile(\"atom.relaxed.")?;
    let (instruction, rest) = rest.split_once(';')?;
    let function = match instruction.split('.').next()? {
        "add" => "atomicAdd",
        "min" => "atomicMin",
        "max" => "atomicMax",
        _ => return None,
    };
    let operands = rest.split("\"(").skip(1);
    let operands: Option<Vec<&str>> = operands.map(|text| Some(text.split_once(')')?.0)).collect();
    let [result, pointer, value] = operands?[..] else {
        return None;
    };
    Some(format!("{before}{result} = {function}({pointer}, {value});"))
}

/// The names of all kernels: behind `__global__`, before the parameters, and not the bounds of launches.
fn kernels(source: &str) -> Vec<&str> {
    let name = |text: &'_ str| -> Option<(usize, usize)> {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let mut at = 0;
        loop {
            at += text[at..].find(is_word)?;
            let len = text[at..].find(|letter| !is_word(letter))?;
            let behind = at + len;
            let opens = text[behind..].trim_start().starts_with('(');
            if opens && &text[at..behind] != "__launch_bounds__" {
                return Some((at, behind));
            }
            at = if opens { behind + text[behind..].find(')')? + 1 } else { behind };
        }
    };
    let found = source.split("__global__").skip(1);
    let mut names: Vec<&str> =
        found.filter_map(|text| name(text).map(|(start, end)| &text[start..end])).collect();
    names.dedup();
    names
}
