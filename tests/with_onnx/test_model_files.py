"""Reading and writing ONNX files: what comes back, and one message for everything that can be wrong with a file."""

import os

import numpy as np
import onnx
import pytest
from networks import Model, branching, lenet
from onnx import TensorProto

from pullback.onnx import OnnxError, Session, model_files
from pullback.onnx.model_files import load_model, save_model


def external(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(lenet(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_a_model_from_a_path_bytes_or_a_message(tmp_path):
    model, path = lenet(), tmp_path / "model.onnx"
    save_model(model, path)
    for source in (path, str(path), path.read_bytes(), model):
        assert load_model(source) == model
    assert load_model(model) is not model


def test_external_data_are_read(tmp_path):
    assert load_model(external(tmp_path)).graph.initializer[0].raw_data == lenet().graph.initializer[0].raw_data


def test_external_data_that_are_missing_or_too_short(tmp_path):
    path = external(tmp_path)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(OnnxError, match=r"weights\.bin has 100 bytes, but .* ends at byte .* cut short"):
        load_model(path)
    data.unlink()
    with pytest.raises(OnnxError, match=r"keeps the weights '.*' in the file .*weights\.bin, which is not there"):
        load_model(path)


def test_files_that_are_no_models(tmp_path):
    path = tmp_path / "model.onnx"
    with pytest.raises(OnnxError, match=r"there is no file .*model\.onnx"):
        load_model(path)
    with pytest.raises(OnnxError, match="cannot be read"):
        load_model(tmp_path)
    whole = lenet().SerializeToString()
    for data in (b"", b"not a model at all", whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(OnnxError, match=r"model\.onnx: (not an ONNX model|no ONNX model)"):
            load_model(path)


@pytest.mark.parametrize("version", [10, 24])
def test_opsets_out_of_range(version):
    model = lenet()
    model.opset_import[0].version = version
    with pytest.raises(OnnxError, match=f"uses opset {version}; known are 11 to 23"):
        load_model(model)


def test_what_the_checker_refuses():
    model = lenet()
    model.graph.node[0].op_type = "Convolution"
    with pytest.raises(OnnxError, match=r"breaks ONNX's rules: .*Convolution"):
        load_model(model)


def test_a_branch_on_a_known_size_is_taken():
    """The size of an axis beside an open one, as PyTorch's exporter asks for it."""
    m, x = Model(), np.array([[1.0, -2.0, 3.0]], np.float32)
    size = m.op("Gather", m.op("Shape", m.input("x", ["N", 3])), m.tensor("one", np.array(1)))
    model = branching(m, m.op("Equal", size, m.tensor("three", np.array(3))))
    np.testing.assert_array_equal(Session(model).run(None, {"x": x})[0], -x)


def test_an_output_of_unknown_rank():
    m = Model()
    proto = m.proto(m.op("Relu", m.input("x", [2])))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert load_model(proto).graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_control_flow():
    m = Model()
    m.input("x", [2])
    model = branching(m, m.input("condition", [], TensorProto.BOOL))
    with pytest.raises(OnnxError, match=r"\(If, output 'chosen'\): control flow is not supported"):
        load_model(model)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    save_model(lenet(), path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OnnxError, match=r"not be written to .*model\.onnx.*: No space left on device"):
        save_model(lenet(seed=1), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_weights_too_large_for_one_file_go_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "IN_ONE_FILE", 1000)
    path, model = tmp_path / "model.onnx", lenet()
    save_model(model, path)
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.data"]
    assert path.stat().st_size < 5000
    loaded = load_model(path)
    assert [t.raw_data for t in loaded.graph.initializer] == [t.raw_data for t in model.graph.initializer]
