//! Names of the NVIDIA target.

pub mod ptx_version {
    //! The PTX version that LLVM would emit.

    use std::fmt;

    /// A PTX version that LLVM emits for a driver. There is none, since there is no LLVM.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum PtxVersion {}

    impl PtxVersion {
        /// The version for a CUDA driver, as `cuDriverGetVersion` reports it: always `None`, which
        /// `cubecl-cuda` reads as the back end's own choice.
        pub fn for_driver(_driver_version: i32) -> Option<Self> {
            None
        }
    }

    impl fmt::Display for PtxVersion {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match *self {}
        }
    }
}
