//! Operations that streams themselves do on words in device memory, without a kernel.
//!
//! A stream that waits for a value holds no multiprocessor, so any number of ranks may wait on one
//! device without keeping each other from running.

use cudarc::driver::sys::{
    self, CUstreamBatchMemOpParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as Wait,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as WaitValue,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as Write,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WriteValue,
    CUstreamBatchMemOpType, CUstreamWaitValue_flags, CUstreamWriteValue_flags,
};

use crate::error::{Result, check};
use crate::memory::span::Span;
use crate::stream::Stream;

/// A batch of waits for and writes to 32-bit words, queued in one call and done in this order.
#[derive(Default)]
pub struct StreamOps {
    params: Vec<CUstreamBatchMemOpParams>,
    spans: Vec<Span>,
}

/// The driver takes no more in one call.
const BATCH_MAX: usize = 256;

// SAFETY: the parameters are plain numbers, with device addresses among them that nothing here
// dereferences; what they point to is kept by `spans`, which are Send.
unsafe impl Send for StreamOps {}

impl std::fmt::Debug for StreamOps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamOps({})", self.params.len())
    }
}

impl StreamOps {
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties it; its memory stays, so that a step allocates nothing.
    pub fn clear(&mut self) {
        self.params.clear();
        self.spans.clear();
    }

    /// Waits until the word has reached `value`, counted round the 32 bits: until
    /// `word - value`, as a signed number, is not negative.
    pub fn wait(&mut self, word: &Span, value: u32) -> &mut Self {
        self.params.push(CUstreamBatchMemOpParams {
            waitValue: Wait {
                operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
                address: word.word_address(),
                __bindgen_anon_1: WaitValue { value },
                flags: CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32,
                alias: 0,
            },
        });
        self.spans.push(word.clone());
        self
    }

    /// Writes the word once everything before on the stream is visible to its readers.
    pub fn write(&mut self, word: &Span, value: u32) -> &mut Self {
        self.params.push(CUstreamBatchMemOpParams {
            writeValue: Write {
                operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
                address: word.word_address(),
                __bindgen_anon_1: WriteValue { value },
                flags: CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32,
                alias: 0,
            },
        });
        self.spans.push(word.clone());
        self
    }

    pub fn queue(&mut self, stream: &Stream) -> Result<()> {
        stream.context().bind()?;
        for span in &self.spans {
            span.used_by(stream.context());
        }
        for batch in self.params.chunks_mut(BATCH_MAX) {
            // SAFETY: the array has that many initialised elements, each written as the member that its
            // operation says; the words are aligned device memory (`Span::word_address`) that stays allocated
            // until the contexts that use it are idle (`used_by`). The driver copies the array.
            let result = unsafe {
                sys::cuStreamBatchMemOp_v2(stream.raw(), batch.len() as u32, batch.as_mut_ptr(), 0)
            };
            check("cuStreamBatchMemOp", result)?;
        }
        Ok(())
    }
}
