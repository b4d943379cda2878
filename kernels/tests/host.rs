//! The reductions' CUDA C++ on the CPU, by whatever C++ compiler there is, against the reference.
//!
//! Elements before and behind the whole vectors are among them. Threads run
//! one after the other, so it says nothing about a device's memory model; the kernels share nothing
//! between threads. A buffer lies in an image with bytes around it, which must be left alone.

#![cfg(feature = "cuda")]

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bonfire_kernels::reduce::{self, Reduce};
use bonfire_kernels::source::{KernelSource, Launch, Spread};
use bonfire_kernels::{Arithmetic, Element, Fold, variants};
use half::{bf16, f16};

/// Bytes before and behind a buffer: more than any vector has.
const GUARD_BYTES: usize = 64;

/// What nobody may change.
const GUARD: u8 = 0xa5;

/// Few blocks, so that threads take several steps.
const CUBES_MAX: u32 = 2;

const DIVISOR: u32 = 3;

/// One launch of one kernel on buffers of its own.
struct Case {
    kernel: usize,
    reduce: Reduce,
    skip: usize,
    elems: usize,
}

impl Case {
    fn launch(&self) -> Launch {
        let spread = Spread { elems: self.elems, cubes_max: CUBES_MAX };
        let launch = self.reduce.cuda_launch(spread, self.skip, DIVISOR);
        launch.expect("a test has few elements")
    }

    /// Where the buffer begins in its image.
    fn start(&self) -> usize {
        GUARD_BYTES + self.skip * self.reduce.element().bytes()
    }

    /// The images of all buffers before the launch.
    fn images(&self) -> Vec<Vec<u8>> {
        let element = self.reduce.element();
        let buffers = 0..self.reduce.roles().len();
        buffers
            .map(|buffer| {
                let mut image = vec![GUARD; GUARD_BYTES + self.start()];
                let values = (0..self.elems).flat_map(|index| {
                    value_bytes(element, self.reduce.fold(), buffer * 31 + index)
                });
                image.splice(self.start()..self.start(), values);
                // Images are read one after the other, each aligned.
                image.resize(image.len().next_multiple_of(16), GUARD);
                image
            })
            .collect()
    }

    /// What the images must be after it.
    fn expected(&self) -> Vec<Vec<u8>> {
        match self.reduce.element() {
            Element::F32 => self.expected_of::<f32>(),
            Element::F64 => self.expected_of::<f64>(),
            Element::F16 => self.expected_of::<f16>(),
            Element::Bf16 => self.expected_of::<bf16>(),
            Element::I8 => self.expected_of::<i8>(),
            Element::I16 => self.expected_of::<i16>(),
            Element::I32 => self.expected_of::<i32>(),
            Element::I64 => self.expected_of::<i64>(),
            Element::U8 => self.expected_of::<u8>(),
            Element::U16 => self.expected_of::<u16>(),
            Element::U32 => self.expected_of::<u32>(),
            Element::U64 => self.expected_of::<u64>(),
        }
    }

    fn expected_of<T: Arithmetic>(&self) -> Vec<Vec<u8>> {
        let mut images = self.images();
        let bytes = self.start()..self.start() + self.elems * size_of::<T>();
        let mut buffers: Vec<Vec<T>> = images
            .iter()
            .map(|image| bytemuck::pod_collect_to_vec(&image[bytes.clone()]))
            .collect();
        let mut views: Vec<&mut [T]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        reduce::reference(&self.reduce, &mut views, DIVISOR);
        for (image, buffer) in images.iter_mut().zip(&buffers) {
            image[bytes.clone()].copy_from_slice(bytemuck::cast_slice(buffer));
        }
        images
    }
}

/// Elements that round, wrap, tie and, where a fold says what comes of it, are NaN.
fn value_bytes(element: Element, fold: Fold, seed: usize) -> Vec<u8> {
    // The multiplier of a generator of 64 bits (Knuth 3.3.4).
    let bits = (seed as u64).wrapping_mul(6_364_136_223_846_793_005).rotate_right(29);
    let ordered = matches!(fold, Fold::Min | Fold::Max);
    let float = match seed % 13 {
        0 => 0.0,
        1 => -0.0,
        2 if ordered => f64::NAN,
        _ => (bits % 20_011) as f64 / 64.0 - 150.0,
    };
    match element {
        Element::F32 => (float as f32).to_le_bytes().to_vec(),
        Element::F64 => float.to_le_bytes().to_vec(),
        Element::F16 => f16::from_f64(float).to_le_bytes().to_vec(),
        Element::Bf16 => bf16::from_f64(float).to_le_bytes().to_vec(),
        _ => bits.to_le_bytes()[..element.bytes()].to_vec(),
    }
}

/// All kernels, each once, and the launches of each.
fn cases() -> (Vec<KernelSource>, Vec<Case>) {
    let (mut sources, mut cases): (Vec<KernelSource>, Vec<Case>) = Default::default();
    for reduce in variants::reductions() {
        let source = reduce.cuda_source().expect("a variant compiles");
        if sources.iter().any(|known| known.entry == source.entry) {
            continue;
        }
        let kernel = sources.len();
        sources.push(source);
        let width = reduce.width().elems(reduce.element());
        let mut skips = vec![0, 1, width - 1];
        skips.retain(|skip| *skip < width);
        skips.dedup();
        for skip in skips {
            // Two blocks of 512 threads take 1024 steps in one go.
            for elems in [0, 1, width, width + 1, 3 * width - 1, 1003, 1100 * width + 3] {
                let reduce = reduce.clone();
                cases.push(Case { kernel, reduce, skip, elems });
            }
        }
    }
    (sources, cases)
}

/// The program that reads launches and answers with the images after each.
fn program(sources: &[KernelSource]) -> String {
    let mut text = include_str!("host/device.hpp").to_owned();
    // No thread waits for another.
    text.push_str("#define STAND_IN_WAITS 0\n");
    text.push_str(include_str!("../../tests/cuda-stand-in/src/compiler/prelude.hpp"));
    for (number, source) in sources.iter().enumerate() {
        let kernel = &source.source;
        let arguments: String = (0..source.buffers).fold(String::new(), |mut text, buffer| {
            let _ = write!(text, "Address{{a[{buffer}]}}, ");
            text
        });
        let _ = writeln!(
            text,
            "namespace kernel{number} {{\n{kernel}\nstatic void run(void** a, void* info) {{\n  \
             {}({arguments}*(const info_st*)info);\n}}\n}}",
            source.entry
        );
    }
    text.push_str("static void (*const RUN[])(void**, void*) = {\n");
    for number in 0..sources.len() {
        let _ = writeln!(text, "  kernel{number}::run,");
    }
    text.push_str("};\n");
    text.push_str(include_str!("host/main.cpp"));
    text
}

/// The program's path, or a line that says why there is none.
fn build(text: &str) -> Option<PathBuf> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    if Command::new(&compiler).arg("--version").output().is_err() {
        println!("skipped: there is no C++ compiler; install one, or name it in CXX");
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("reductions.cpp"), folder.join("reductions"));
    std::fs::write(&source, text).expect("the folder of the test is there");
    let built = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-o"])
        .args([&program, &source])
        .output()
        .expect("the compiler was there a moment ago");
    let log = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{}", log.lines().take(40).collect::<Vec<_>>().join("\n"));
    Some(program)
}

/// Everything that is sent to the program.
fn requests(cases: &[Case]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for case in cases {
        let (launch, images) = (case.launch(), case.images());
        let numbers = [
            case.kernel as u32,
            images.len() as u32,
            launch.cubes,
            launch.units,
            launch.info().len() as u32,
            images[0].len() as u32,
            GUARD_BYTES as u32,
        ];
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(launch.info());
        images.iter().for_each(|image| bytes.extend(image));
    }
    bytes
}

#[test]
fn reductions_compute_what_the_reference_does() {
    let (sources, cases) = cases();
    let Some(program) = build(&program(&sources)) else {
        return;
    };
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program was built");
    let mut input = child.stdin.take().expect("it is piped");
    let requests = requests(&cases);
    let sender = std::thread::spawn(move || input.write_all(&requests));
    let mut output = child.stdout.take().expect("it is piped");
    for case in &cases {
        for (buffer, expected) in case.expected().iter().enumerate() {
            let mut found = vec![0; expected.len()];
            output.read_exact(&mut found).expect("it answers every launch");
            let first = found.iter().zip(expected).position(|(a, b)| a != b);
            assert_eq!(
                first,
                None,
                "buffer {buffer} differs at this byte of its image, which begins {} before it: {:?}, {} \
                 skipped, {} elements",
                case.start(),
                case.reduce,
                case.skip,
                case.elems
            );
        }
    }
    sender.join().expect("nothing panics there").expect("it reads every launch");
    assert!(child.wait().expect("it ends").success());
    println!("{} kernels in {} launches", sources.len(), cases.len());
}
