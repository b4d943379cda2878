//! Names that the GPU targets have in common.

pub mod lowered_features {
    //! What the back end can compile of what a device offers.

    use cubecl_ir::DeviceProperties;

    /// A GPU target of the back end.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GpuTarget {
        /// NVIDIA, through PTX.
        Nvptx,
    }

    /// Would take from `properties` what LLVM cannot compile. Nothing is compiled here, so nothing
    /// is taken: the first kernel reports the error.
    pub fn restrict_features(_properties: &mut DeviceProperties, _target: GpuTarget) {}
}
