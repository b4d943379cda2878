// Behind the table of kernels: launches come in one after the other, images go out.

int main() {
  struct alignas(16) Line {
    char bytes[16];
  };
  Launch launch;
  while (read(&launch, sizeof launch)) {
    std::vector<uint64_t> info(launch.info_bytes / 8);
    if (!read(info.data(), launch.info_bytes)) return 2;
    std::vector<std::vector<Line>> images;
    std::vector<void*> addresses;
    for (uint32_t buffer = 0; buffer < launch.buffers; ++buffer) {
      images.emplace_back(launch.image_bytes / 16);
      if (!read(images[buffer].data(), launch.image_bytes)) return 2;
      addresses.push_back((char*)images[buffer].data() + launch.address);
    }
    gridDim = {launch.cubes, 1, 1};
    blockDim = {launch.units, 1, 1};
    for (blockIdx.x = 0; blockIdx.x < launch.cubes; ++blockIdx.x) {
      for (threadIdx.x = 0; threadIdx.x < launch.units; ++threadIdx.x) {
        RUN[launch.kernel](addresses.data(), info.data());
      }
    }
    for (const auto& image : images) fwrite(image.data(), 1, launch.image_bytes, stdout);
  }
}
