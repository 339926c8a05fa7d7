"""Reading and writing ONNX files: what comes back, and one message for everything that can be wrong with a file."""

import os

import onnx
import pytest
from networks import Model, lenet
from onnx import TensorProto, helper

from pullback.onnx import OnnxError, model_files
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


def test_an_output_of_unknown_rank():
    m = Model()
    proto = m.proto(m.op("Relu", m.input("x", [2])))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert load_model(proto).graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_control_flow():
    m = Model()
    condition = m.op("ReduceMax", m.op("Cast", m.input("switch", [2]), to=TensorProto.BOOL))
    branch = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "branch", [],
                               [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])  # fmt: skip
    m.input("x", [2])
    y = m.op("If", condition, then_branch=branch, else_branch=branch)
    m.output(y, [2])
    with pytest.raises(OnnxError, match=r"\(If, output 't3'\): control flow is not supported"):
        load_model(m.proto())


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
